"""Calls that wait for a replica that has their model though another one has room: for a time, and only for a load's."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.events import HandlerStateReported
from router_service.core.preferences import delays
from router_service.core.preferences.delays import LOADS, LOADS_OF_PLACE
from slotmesh.spec.model import SloScope
from tests.unit.router.slot_world import SlotWorld
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller

LOAD_S = 4.0
NAMES = ("r0", "r1")


def report(world: World, name: str, *models: str, most: int = 1, load_s: float = LOAD_S) -> None:
    world.step(HandlerStateReported(world.replicas[name], {}, frozenset(models), max_models=most, load_s=load_s))


def world_of(slots: int = 1, most: int = 1, load_s: float = LOAD_S, **table: Any) -> World:
    """Each replica has the model of its number, and one call of `r1`'s model fills `r1`'s only permit."""
    world = World({"b": NAMES}, slots=slots, **table)
    for number, name in enumerate(NAMES):
        report(world, name, f"m{number}", most=most, load_s=load_s)
    world.submit(range(1, slots + 1), model_id="m1")
    assert world.at_replica("r1") == [*range(1, slots + 1)]
    return world


def expire(world: World, at: float) -> None:
    """Time passes, as the shell has it pass: to each deadline in turn."""
    while (due := world.scheduler.next_deadline()) is not None and due <= at:
        assert due > world.now, "the shell would step again and again"
        world.at(due)
    world.at(at)


def test_a_call_waits_for_the_replica_that_has_its_model() -> None:
    world = world_of()
    world.submit([11], model_id="m1")
    assert world.at_replica("r0") == []
    world.complete("r1")
    assert world.at_replica("r1") == [11]


def test_calls_that_suit_the_free_replica_do_not_wait_behind_it() -> None:
    world = world_of()
    world.submit([11], model_id="m1")
    world.submit([12], model_id="m0")
    assert world.at_replica("r0") == [12]
    world.submit([13])
    world.complete("r0")
    assert world.at_replica("r0") == [13], "any replica does for it"


def test_a_call_waits_no_longer_than_a_load_takes() -> None:
    world = world_of()
    world.submit([11], model_id="m1")
    expire(world, LOAD_S - 0.1)
    assert world.at_replica("r0") == []
    expire(world, LOAD_S)
    assert world.at_replica("r0") == [11]
    assert world.scheduler.next_deadline() is None or world.scheduler.next_deadline() > LOAD_S  # type: ignore[operator]


def test_the_time_counts_from_when_it_was_first_passed_over() -> None:
    world = world_of()
    world.submit([2], model_id="m0")
    world.submit([11], model_id="m1")
    expire(world, 2.0)
    world.complete("r0")
    assert world.at_replica("r0") == []
    expire(world, 2.0 + LOAD_S - 0.1)
    world.submit([12], model_id="m0")
    world.complete("r0")
    assert world.at_replica("r0") == [], "it was passed over before, and waits on"
    expire(world, 2.0 + LOAD_S)
    assert world.at_replica("r0") == [11]


def test_a_call_is_sent_once_half_of_its_time_in_queues_is_over() -> None:
    world = world_of(settings={"max_queue_time_s": 3.0})
    world.submit([11], model_id="m1")
    expire(world, 1.4)
    assert world.at_replica("r0") == []
    expire(world, 1.5)
    assert world.at_replica("r0") == [11]


def test_a_call_is_sent_once_half_of_its_timeout_is_over() -> None:
    world = world_of()
    world.submit([2], model_id="m0")
    world.submit([11], model_id="m1", timeout_s=9.0)
    expire(world, 1.0)
    world.complete("r0")
    expire(world, 3.9)
    assert world.at_replica("r0") == []
    expire(world, 4.0)
    assert world.at_replica("r0") == [11], "it may wait for 8 s: calls take 1 s"


def test_a_call_whose_deadline_is_nearer_than_the_end_of_a_load_is_sent_to_none() -> None:
    world = world_of()
    world.submit([11], model_id="m1", timeout_s=LOAD_S - 0.1)
    expire(world, LOAD_S - 0.2)
    assert world.at_replica("r0") == [], "it would have failed there"
    world.complete("r1")
    assert world.at_replica("r1") == [11]


def test_calls_that_waited_for_a_load_do_not_count_as_slow_ones() -> None:
    """The mean decides which waiting calls have too little time left: loads of models are not part of it."""
    world = World({"b": ["r0"]}, slots=1)
    world.submit([1], model_id="m0")
    world.at(LOAD_S)
    world.complete("r0")
    service_time = world.replicas["r0"].backend.account.service_time
    assert service_time.mean_s == 0.0
    report(world, "r0", "m0")
    world.submit([2], model_id="m0")
    world.at(LOAD_S + 0.5)
    world.complete("r0")
    assert service_time.mean_s == 0.5


@pytest.mark.parametrize(("most", "loads"), [(1, LOADS), (2, LOADS_OF_PLACE)])
def test_permits_that_stay_free_cost_no_more_than_loads(most: int, loads: int) -> None:
    """Without a free place, a load costs more: it unloads another model."""
    slots = 4 * LOADS
    world = world_of(slots, most)
    world.submit(range(1_000, 1_000 + slots), model_id="m1")
    idle = slots
    expire(world, loads * LOAD_S / idle - 0.001)
    assert world.at_replica("r0") == []
    expire(world, loads * LOAD_S / idle)
    assert world.at_replica("r0")[0] == 1_000


def test_a_look_at_the_queue_passes_over_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "MAX_DELAYED", 3)
    world = world_of(slots=8)
    for call in (11, 12, 13):
        world.submit([call], by=caller(), model_id="m1")
    assert world.at_replica("r0") == []
    world.submit([14], by=caller(), model_id="m1")
    assert world.at_replica("r0") == [14]
    world.complete("r1", 1)
    assert world.at_replica("r1")[-1] == 11, "those before it wait on"


def test_without_a_known_time_of_loads_nothing_waits() -> None:
    world = world_of(load_s=0.0)
    world.submit([11], model_id="m1")
    assert world.at_replica("r0") == [11]


def test_a_cold_model_is_loaded_at_once() -> None:
    world = world_of()
    world.submit([11], model_id="cold")
    assert world.at_replica("r0") == [11]


def test_a_call_does_not_wait_for_replicas_whose_calls_take_longer_than_a_load() -> None:
    world = world_of()
    world.at(LOAD_S + 1.0)
    world.complete("r1")
    world.submit([11, 12], model_id="m1")
    assert world.at_replica("r0") == [12]


def test_a_call_with_an_slo_does_not_wait_and_none_waits_in_front_of_it() -> None:
    world = world_of()
    world.submit([11], model_id="m1", slo_s=5.0)
    assert world.at_replica("r0") == [11]
    world.complete("r0")
    world.submit([12], model_id="m1")
    assert world.at_replica("r0") == []
    world.submit([13], model_id="m0", slo_s=5.0)
    assert world.at_replica("r0") == [12], "13 is due later"


def test_nothing_waits_where_slos_order_all_callers() -> None:
    world = world_of(settings={"slo_scope": SloScope.BACKEND})
    world.submit([11], model_id="m1")
    assert world.at_replica("r0") == [11]


def test_calls_of_other_callers_and_tenants_are_not_held_up() -> None:
    world = world_of(slots=2)
    other = caller()
    world.submit([11], model_id="m1", tenant="a")
    world.submit([12], model_id="m1", tenant="b")
    world.submit([13], model_id="m0", tenant="b")
    world.submit([21], model_id="m0", by=other)
    assert world.at_replica("r0") == [13, 21]
    world.complete("r1")
    assert world.at_replica("r1") == [11, 12], "their turns are as before"


def test_a_call_joins_a_load_only_if_no_loaded_replica_is_about_to_have_room() -> None:
    world = world_of(slots=2)
    world.submit([11], model_id="m1", slo_s=5.0)
    assert world.at_replica("r0") == [11], "r0 loads it"
    world.submit([12], model_id="m1")
    assert world.at_replica("r0") == [11]
    report(world, "r0", "m1")
    assert world.at_replica("r0") == [11, 12]


def test_delayed_calls_can_be_cancelled_and_leave_nothing_behind() -> None:
    world = world_of()
    world.submit([11], model_id="m1")
    world.cancel((11, 11))
    expire(world, 2 * LOAD_S)
    assert world.at_replica("r0") == []
    assert not world.scheduler._parts.sender.delaying
    assert not world.queued


def test_reservations_wait_as_calls_do() -> None:
    world = SlotWorld({"b": NAMES}, slots=1)
    for number, name in enumerate(NAMES):
        report(world, name, f"m{number}")
    world.submit([1], model_id="m1")
    world.reserve(model_id="m1")
    assert not world.ops["r0"]
    world.complete("r1")
    assert len(world.ops["r1"]) == 1


def test_reservations_for_certain_replicas_do_not_wait_behind_delayed_calls() -> None:
    world = SlotWorld({"b": NAMES}, slots=1)
    for number, name in enumerate(NAMES):
        report(world, name, f"m{number}")
    world.submit([1], model_id="m1")
    world.submit([11], model_id="m1")
    world.reserve(replica_id="r0")
    assert len(world.ops["r0"]) == 1
    world.submit([12], model_id="m0")
    world.complete("r1")
    assert world.at_replica("r1") == [11]
