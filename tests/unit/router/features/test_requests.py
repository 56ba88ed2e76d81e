"""Reservations under a request id."""

from __future__ import annotations

from itertools import permutations

import pytest

from router_service.core.calls import LeasedSlot
from router_service.core.features import slot_requests
from slotmesh.errors import Reason
from tests.unit.router.slot_world import SlotWorld, slot


def granted(world: SlotWorld, token: str = "t1", request_id: str = "id") -> None:
    world.reserve(request_id=request_id)
    world.grant("r1", token)


def test_who_asks_again_joins_the_one_under_way() -> None:
    world = SlotWorld({"b": ["r1"]})
    first, second = world.reserve(request_id="id"), world.reserve(request_id="id")
    assert world.got_ops("r1") == ["Reserve"]
    world.grant("r1", "t1")
    assert world.end(first) == world.end(second) == slot("r1", "t1")


def test_the_same_slot_while_its_lease_lives() -> None:
    world = SlotWorld({"b": ["r1"]})
    granted(world)
    world.at(9.0)
    again = world.end(world.reserve(request_id="id"))
    assert isinstance(again, LeasedSlot)
    assert (again.token, again.ttl_s) == ("t1", 1.0)
    assert world.got_ops("r1") == ["Reserve"]


def test_no_more_than_so_many_slots_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_requests, "MAX_GRANTED", 2)
    world = SlotWorld({"b": ["r1"]})
    for number in range(3):
        granted(world, f"t{number}", f"id{number}")
    again = [world.end(world.reserve(request_id=f"id{number}")) for number in range(3)]
    assert again == [None, slot("r1", "t1"), slot("r1", "t2")]
    assert len(world.scheduler._parts.slot_operations.requests) == 3


def test_another_one_when_the_lease_is_over() -> None:
    world = SlotWorld({"b": ["r1"]})
    granted(world)
    world.at(10.0)
    assert world.scheduler.next_deadline() is None
    assert world.end(world.reserve(request_id="id")) is None
    assert world.got_ops("r1") == ["Reserve", "Reserve"]


@pytest.mark.parametrize("use", ["dispatch", "release"])
def test_another_one_when_the_slot_was_used(use: str) -> None:
    world = SlotWorld({"b": ["r1"]})
    granted(world)
    getattr(world, use)("r1", "t1")
    assert world.end(world.reserve(request_id="id")) is None


def test_a_renewed_lease_lives_longer() -> None:
    world = SlotWorld({"b": ["r1"]})
    granted(world)
    world.at(8.0)
    world.renew("r1", "t1")
    world.answer("r1", slot("r1", "t1"))
    world.at(17.0)
    again = world.end(world.reserve(request_id="id"))
    assert isinstance(again, LeasedSlot)
    assert again.ttl_s == 1.0
    world.at(18.0)
    assert world.end(world.reserve(request_id="id")) is None


def test_another_one_when_the_replica_is_gone() -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    granted(world)
    world.backends["b"].remove("r1")
    world.push()
    world.reserve(request_id="id")
    assert world.got_ops("r2") == ["Reserve"]


@pytest.mark.parametrize("is_granted", [True, False])
@pytest.mark.parametrize("wish", [{"ttl_s": 11.0}, {"replica_id": "r1"}, {"shard_key": "s"}, {"endpoint": "f"}])
def test_the_same_id_for_something_else(wish: dict[str, object], is_granted: bool) -> None:
    world = SlotWorld({"b": ["r1"]}, endpoints=["e", "f"])
    world.reserve(request_id="id")
    if is_granted:
        world.grant("r1")
    assert world.reason(world.reserve(request_id="id", **wish)) is Reason.BAD_REQUEST  # type: ignore[arg-type]


def test_it_ends_when_the_last_who_waits_has_left() -> None:
    world = SlotWorld({"b": ["r1"]})
    first, second = world.reserve(request_id="id"), world.reserve(request_id="id")
    world.leave(first)
    assert not world.cancelled["r1"]
    world.leave(second)
    assert world.cancelled["r1"] == [1]
    world.grant("r1", "t1")
    assert world.got_ops("r1") == ["Reserve", "Release"]


def test_each_waits_for_as_long_as_it_wants() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit([1])
    first, second = world.reserve(request_id="id", timeout_s=1.0), world.reserve(request_id="id", timeout_s=3.0)
    world.at(1.0)
    assert (world.reason(first), world.end(second)) == (Reason.NO_SLOT, None)
    world.complete("r1")
    world.at(2.0)
    world.grant("r1")
    assert isinstance(world.end(second), LeasedSlot)


@pytest.mark.parametrize("order", [*permutations((1.0, 2.0, 4.0))])
def test_whoever_came_first_each_waits_for_as_long_as_it_wants(order: tuple[float, ...]) -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit([1])
    callers = {timeout_s: world.reserve(request_id="id", timeout_s=timeout_s) for timeout_s in order}
    for now in (1.0, 2.0):
        world.at(now)
        for timeout_s, caller in callers.items():
            if timeout_s <= now:
                assert world.reason(caller) is Reason.NO_SLOT, (timeout_s, now)
            else:
                assert world.end(caller) is None, (timeout_s, now)
    world.complete("r1")
    world.at(3.0)
    world.grant("r1")
    assert isinstance(world.end(callers[4.0]), LeasedSlot)


def test_a_replica_whose_time_is_up_while_others_still_wait_is_not_the_end() -> None:
    world = SlotWorld({"b": ["r1"]})
    world.reserve(request_id="id", timeout_s=1.0)
    later = world.reserve(request_id="id", timeout_s=3.0)
    world.at(1.0)
    world.deny("r1", Reason.NO_SLOT)
    assert world.end(later) is None
    assert [op.deadline for op in world.ops["r1"]] == [1.0, 3.0]  # type: ignore[union-attr]  # reservations


def test_a_failure_is_told_to_all_and_forgotten() -> None:
    world = SlotWorld({"b": ["r1"]})
    first, second = world.reserve(request_id="id"), world.reserve(request_id="id")
    world.endpoints = []
    world.deny("r1", Reason.HANDLER_ERROR)
    assert world.reason(first) is world.reason(second) is Reason.HANDLER_ERROR
    world.reserve(request_id="id")
    assert world.got_ops("r1") == ["Reserve", "Reserve"]
