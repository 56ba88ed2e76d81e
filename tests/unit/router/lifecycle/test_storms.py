"""Thousands of small things at once cost what they are, not their square.

The bounds are many times what it takes, and a fraction of what it takes where each thing looks at all the others.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from slotmesh.errors import Reason
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller

pytestmark = pytest.mark.slow

RUNS = 8_192
"""What a stream's window lets one client have unanswered."""


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """What is inside takes no longer, seconds of this process: without looks for garbage in all that it has."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        yield
        took_s = time.process_time() - began
    finally:
        gc.enable()
    assert took_s < limit_s, f"took {took_s:.2f} s"


def test_one_frame_cancels_as_many_ranges_as_there_are_runs() -> None:
    world = World({"b": []})
    for call in range(RUNS):
        world.submit([10 * call + 1])
    useless = [(10 * call + 2 * part, 10 * call + 2 * part) for call in range(RUNS) for part in range(1, 5)]
    with within(4.0):
        world.cancel(*useless, *((10 * call + 1, 10 * call + 1) for call in range(0, RUNS, 2)))
    assert world.reasons(world.outcomes) == {Reason.CANCELLED}
    assert len(world.outcomes) == RUNS // 2
    assert world.queued == {"b": RUNS // 2}


def test_every_other_call_of_a_long_run_is_cancelled_at_its_replica() -> None:
    world = World({"b": ["r"]}, slots=RUNS)
    world.submit(range(1, RUNS + 1))
    with within(4.0):
        world.cancel(*((call, call) for call in range(2, RUNS + 1, 2)))
    assert list(world.outcomes) == list(range(2, RUNS + 1, 2))
    assert len(world.cancelled["r"]) == RUNS // 2
    world.complete("r")
    assert len(world.outcomes) == RUNS


def test_every_other_call_of_a_run_over_many_replicas_is_cancelled() -> None:
    names = [f"r{number}" for number in range(1000)]
    world = World({"b": names}, slots=9)
    world.submit(range(1, RUNS + 1))
    with within(0.5):
        world.cancel(*((call, call) for call in range(2, RUNS + 1, 2)))
    assert sorted(world.outcomes) == list(range(2, RUNS + 1, 2))


def test_an_owner_hands_back_all_calls_of_one_key_in_many_frames() -> None:
    world = World({"b": ["r", "other"]}, owner=("r", 1))
    for call in range(1, RUNS + 1):
        world.submit([call], ordering_key="k")
    world.drain("r")
    with within(4.0):
        for first in range(1, RUNS + 1, 64):
            world.refuse("r", *range(first, first + 64), reason=Reason.DRAINING, draining=True)
    world.owner = ("other", 2)
    world.push()
    assert world.at_replica("other") == list(range(1, RUNS + 1))


def test_all_replicas_hand_back_what_they_have_one_after_another() -> None:
    names = [f"r{number}" for number in range(100)]
    world = World({"b": names}, slots=80)
    for call in range(1, RUNS - 192 + 1):
        world.submit([call])
    with within(4.0):
        for name in names:
            world.drain(name)
            world.refuse(name, reason=Reason.DRAINING, draining=True)
    assert world.queued == {"b": RUNS - 192}
    world.backends["b"] = ["fresh"]
    world.slots = RUNS
    world.push()
    assert world.at_replica("fresh") == list(range(1, RUNS - 192 + 1)), "the oldest first"


def test_flows_that_gave_up_behind_one_that_stays_are_forgotten() -> None:
    world, stubborn = World({"b": []}), caller()
    gone: list[weakref.ref[object]] = []
    for call in range(10_000):
        if call % 10 == 0:
            world.submit([call * 2 + 1], by=stubborn)
        single = caller()
        world.submit([call * 2 + 2], by=single, timeout_s=0.5)
        gone += map(weakref.ref, single.runs)
        del single
        world.at(world.now + 0.1)
    assert world.queued["b"] < 400, "the others have timed out"
    world.failure_commands.clear()
    assert sum(ref() is not None for ref in gone) < 2_000
