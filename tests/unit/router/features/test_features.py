"""A call passes the hooks of a feature only while that has something under way: features cost other calls nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from router_service.core.events import CallsSubmitted
from router_service.core.features.taps import CallTap, TapClosed, TapOpened, TapWish
from slotmesh.streams.chunks import Announced
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller, options

OF_CALLS = {"arrives", "follows", "begins", "yielded", "completed", "failed", "concluded"}


def features_entered(act: Callable[[], object]) -> set[str]:
    """The modules of features of which a hook of calls is called."""
    entered: set[str] = set()

    def enters(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/core/features/" in code.co_filename and code.co_name in OF_CALLS:
            entered.add(code.co_filename.rpartition("/")[2].removesuffix(".py"))

    before = sys.getprofile()
    sys.setprofile(enters)
    try:
        act()
    finally:
        sys.setprofile(before)
    return entered


def call(world: World, call_id: int) -> None:
    world.submit([call_id])
    world.complete("r", call_id)


def test_a_plain_call_enters_no_feature() -> None:
    world = World({"b": ["r"]})
    assert features_entered(lambda: call(world, 1)) == set()
    assert world.outcomes == {1: OK}


def test_calls_pass_taps_while_one_is_open() -> None:
    world = World({"b": ["r"]})
    tap = CallTap(TapWish(endpoint="e"))
    world.scheduler.step(TapOpened(tap), world.now)
    assert features_entered(lambda: call(world, 1)) == {"taps"}
    world.scheduler.step(TapClosed(tap), world.now)
    assert features_entered(lambda: call(world, 2)) == set()
    assert len(tap.take()[0]) == 1


def test_calls_pass_uploads_while_a_payload_arrives() -> None:
    world = World({"b": ["r"]})
    world.step(CallsSubmitted(caller(), "e", [(options(), [1], [Announced(8)])]))
    assert "uploads" in features_entered(lambda: call(world, 1))


def test_calls_pass_shadows_while_an_endpoint_has_some() -> None:
    world = World({"b": ["r"], "shadow": ["s"]}, weights={"b": 1.0}, shadows={"shadow": 1.0})
    assert "shadows" in features_entered(lambda: call(world, 1))
    world.shadows = {}
    world.push()
    assert "shadows" not in features_entered(lambda: call(world, 2))
