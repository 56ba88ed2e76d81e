"""Calls that wait while all replicas are full: one that a freed replica suits overtakes others, and not without end."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.events import HandlerStateReported
from router_service.core.lifecycle import sender
from router_service.core.lifecycle.sender import MAX_OVERTAKING, OVERTAKING
from router_service.core.queueing.backend_queues import FEW_CALLS
from router_service.core.queueing.run_queues import LOOK_AHEAD
from slotmesh.spec.model import SloScope
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller

OTHERS = [f"x{number}" for number in range(LOOK_AHEAD)]


def full_world(names: tuple[str, ...] = ("r0", "r1"), **table: Any) -> World:
    """Each replica runs one call without a preference; models `m0`, … are loaded at the replicas of their numbers.

    All others of `OTHERS` are loaded at `r1`.
    """
    world = World({"b": names}, slots=1, **table)
    for number, name in enumerate(names):
        models = frozenset([f"m{number}", *(OTHERS if number == 1 else ())])
        world.step(HandlerStateReported(world.replicas[name], {}, models, max_models=100))
    world.submit(range(1, len(names) + 1))
    return world


def free(world: World, name: str) -> list[int]:
    """The replica answers all that it has. Returns what it has got then."""
    world.complete(name)
    return world.at_replica(name)


def test_a_freed_replica_gets_the_first_waiting_call_that_it_suits() -> None:
    world = full_world()
    world.submit([11], model_id="m1")
    world.submit([12], model_id="m1")
    world.submit([13], model_id="m0")
    world.submit([14], model_id="m0")
    assert free(world, "r0") == [13]
    assert free(world, "r1") == [11]
    assert free(world, "r0") == [14]
    assert free(world, "r0") == [12], "a replica is not left idle for what would rather go elsewhere"


def test_calls_without_a_preference_are_not_overtaken_and_may_overtake() -> None:
    world = full_world()
    world.submit([11])
    world.submit([12], model_id="m0")
    assert free(world, "r0") == [11]
    world.submit([13], model_id="m1")
    world.submit([14])
    assert free(world, "r0") == [12]
    assert free(world, "r0") == [14]
    assert free(world, "r1") == [13]


def test_a_call_is_overtaken_by_a_limited_number_of_calls() -> None:
    world = full_world()
    world.submit([11], model_id="m1")
    for call in range(20, 40):
        world.submit([call], model_id="m0")
    got = [free(world, "r0")[0] for _ in range(2 * OVERTAKING + 1)]
    assert got == [*range(20, 20 + 2 * OVERTAKING), 11]


@pytest.mark.parametrize(("fields", "settings"), [({"timeout_s": 10.0}, {}), ({}, {"max_queue_time_s": 10.0})])
def test_a_call_that_has_waited_for_half_of_its_time_is_not_overtaken(fields: Any, settings: Any) -> None:
    world = full_world(settings=settings)
    world.submit([11], model_id="m1", **fields)
    for call in (12, 13):
        world.submit([call], model_id="m0")
    world.at(1.0)
    assert free(world, "r0") == [12]
    world.at(5.1)
    assert free(world, "r0") == [11]


def test_the_calls_of_one_run_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "OVERTAKING", 3)
    world = World({"b": ("r0", "r1")}, slots=8)
    world.step(HandlerStateReported(world.replicas["r0"], {}, frozenset(["m0"]), max_models=20))
    world.step(HandlerStateReported(world.replicas["r1"], {}, frozenset(["m1"]), max_models=20))
    world.submit(range(1, 17))
    world.submit([21], model_id="m1")
    world.submit(range(30, 50), model_id="m0")
    assert sorted(free(world, "r0")) == [21, *range(30, 37)]


def test_the_limit_grows_with_the_replicas_to_a_most() -> None:
    names = tuple(f"r{number}" for number in range(MAX_OVERTAKING // OVERTAKING + 4))
    world = full_world(names)
    world.submit([101], model_id="m1")
    for call in range(200, 300):
        world.submit([call], model_id="m0")
    got = [free(world, "r0")[0] for _ in range(MAX_OVERTAKING + 1)]
    assert got == [*range(200, 200 + MAX_OVERTAKING), 101]


def test_the_look_ahead_is_bounded() -> None:
    world = full_world()
    for call, model in enumerate(OTHERS, 100):
        world.submit([call], model_id=model)
    world.submit([200], model_id="m0")
    assert free(world, "r0") == [100]
    assert free(world, "r0") == [200], "the others have moved up"


def test_calls_that_were_taken_back_are_passed_by() -> None:
    world = full_world()
    world.submit([11], model_id="m1")
    world.submit([12], model_id="m0")
    world.submit([13], model_id="m0")
    world.cancel((12, 12))
    assert free(world, "r0") == [13]


def test_a_call_that_is_handed_back_has_its_place_again() -> None:
    world = full_world()
    world.submit([11], model_id="m1")
    world.submit([12], model_id="m0")
    world.submit([13], model_id="m0")
    assert free(world, "r0") == [12]
    world.refuse("r0", 12, others=1)
    assert free(world, "r1") == [11]
    world.report("r0")
    assert world.at_replica("r0") == [12]


def test_no_call_overtakes_those_of_another_caller() -> None:
    world = full_world()
    other = caller()
    world.submit([11], model_id="m1")
    world.submit([12], model_id="m0", by=other)
    assert free(world, "r0") == [11]


def test_overtaking_calls_take_the_turn_of_their_flow() -> None:
    world = full_world()
    other = caller()
    world.submit([11], model_id="m1")
    for call in range(100, 100 + 2 * OVERTAKING):
        world.submit([call], model_id="m0")
    world.submit([200], model_id="m0", by=other)
    got = [free(world, "r0")[0] for _ in range(2 * OVERTAKING + 2)]
    assert got == [*range(100, 100 + FEW_CALLS), 200, 11]


def test_calls_with_an_slo_are_not_overtaken_and_do_not_overtake() -> None:
    world = full_world()
    world.submit([11], model_id="x1", slo_s=0.5)
    world.submit([12], model_id="x2")
    world.submit([13], model_id="m0", slo_s=9.0)
    world.submit([14], model_id="m0")
    assert free(world, "r0") == [11]
    assert free(world, "r0") == [14]
    world.at(0.1)
    world.submit([15], model_id="m0", slo_s=0.95)
    world.submit([16], model_id="m0")
    assert free(world, "r0") == [12], "15 is due before 16"


def test_nothing_is_overtaken_where_slos_order_all_callers() -> None:
    world = full_world(settings={"slo_scope": SloScope.BACKEND})
    world.submit([11], model_id="m1")
    world.submit([12], model_id="m0")
    assert free(world, "r0") == [11]


def test_keys_and_prompts_prefer_their_replicas_in_the_queue_too() -> None:
    world = World({"b": ("r0", "r1")}, slots=1)
    world.submit([1], prefix_blocks=(1, 2, 3))
    (first,) = (name for name in ("r0", "r1") if world.at_replica(name))
    (second,) = {"r0", "r1"} - {first}
    world.submit([2], prefix_blocks=(7, 8, 9))
    world.submit([11], prefix_blocks=(7, 8, 4, 5))
    world.submit([12], prefix_blocks=(1, 2, 3, 4))
    assert free(world, first) == [12]
    assert free(world, second) == [11]


def test_reservations_overtake_as_calls_do() -> None:
    world = SlotWorld({"b": ("r0", "r1")}, slots=1)
    for number, name in enumerate(("r0", "r1")):
        world.step(HandlerStateReported(world.replicas[name], {}, frozenset([f"m{number}"]), max_models=20))
    world.submit([1, 2])
    world.reserve(model_id="m1")
    world.reserve(model_id="m0")
    world.complete("r0")
    (op,) = world.ops["r0"]
    assert world.queued == {"b": 1}
    world.complete("r1")
    assert len(world.ops["r1"]) == 1
    assert world.ops["r0"] == [op]
