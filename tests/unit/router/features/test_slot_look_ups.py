"""Repeated reservations: which replicas are queried for the slot, and what follows from their answers."""

from __future__ import annotations

import pytest

from router_service.core.calls import Flow
from router_service.core.features import slot_look_ups
from router_service.core.features.slot_look_ups import MAX_QUERIED
from router_service.core.features.slot_operations import OutgoingLookUp, OutgoingRelease, OutgoingReserve
from router_service.core.look_ups import LINK_WAIT_S
from slotmesh.errors import Failure, Reason
from tests.unit.router.slot_world import SlotWorld, slot


def world_of(*names: str) -> SlotWorld:
    return SlotWorld({"b": names or ("r1", "r2")})


def test_the_slot_of_one_replica_ends_the_search() -> None:
    world = world_of("r1", "r2", "r3")
    caller = world.reserve(request_id="id", attempt=1, timeout_s=0.0)
    assert [world.got_ops(name) for name in ("r1", "r2", "r3")] == [["LookUp"]] * 3
    world.deny("r1", Reason.SLOT_UNKNOWN)
    assert world.end(caller) is None
    world.grant("r2", "t1", ttl_s=7.0)
    assert world.end(caller) == slot("r2", "t1", 7.0)
    world.deny("r3", Reason.SLOT_UNKNOWN)
    assert world.end(world.reserve(request_id="id", attempt=2)) == slot("r2", "t1", 7.0), "it is known here now"


@pytest.mark.parametrize("reason", [Reason.SLOT_UNKNOWN, Reason.NOT_IMPLEMENTED])
def test_another_slot_is_taken_only_after_all_have_answered(reason: Reason) -> None:
    world = world_of()
    caller = world.reserve(request_id="id", attempt=1)
    world.deny("r1", reason)
    assert "Reserve" not in world.got_ops("r1") + world.got_ops("r2")
    world.deny("r2", Reason.SLOT_UNKNOWN)
    (op,) = [each for name in ("r1", "r2") for each in world.ops[name] if isinstance(each, OutgoingReserve)]
    assert op.request is not None
    assert op.request.order == (1, 0)
    world.grant("r1" if op in world.ops["r1"] else "r2", "t1")
    assert world.reason(caller) is None


@pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.DRAINING, Reason.INTERNAL])
def test_a_replica_that_does_not_say_is_no_proof(reason: Reason) -> None:
    world = world_of()
    caller = world.reserve(request_id="id", attempt=1)
    world.deny("r1", reason)
    assert world.reason(caller) is Reason.BACKEND_UNAVAILABLE
    world.deny("r2", Reason.SLOT_UNKNOWN)
    assert world.got_ops("r1") == world.got_ops("r2") == ["LookUp"]


@pytest.mark.parametrize("reason", [Reason.BAD_REQUEST, Reason.CANCELLED])
def test_some_answers_are_those_of_the_reservation(reason: Reason) -> None:
    world = world_of()
    caller = world.reserve(request_id="id", attempt=1)
    world.deny("r1", reason)
    assert world.reason(caller) is reason


def test_a_silent_replica_is_no_proof() -> None:
    world = world_of()
    caller = world.reserve(request_id="id", attempt=1, timeout_s=60.0)
    world.deny("r1", Reason.SLOT_UNKNOWN)
    world.at(LINK_WAIT_S)
    failure = world.end(caller)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.metadata["replica_id"]) == (Reason.BACKEND_UNAVAILABLE, "r2")
    world.grant("r2", "t1")
    assert world.got_ops("r2") == ["LookUp"], "the late answer is dropped"


def test_a_replica_whose_link_breaks_is_queried_again_over_the_next_link() -> None:
    world = world_of()
    caller = world.reserve(request_id="id", attempt=1)
    world.deny("r1", Reason.SLOT_UNKNOWN)
    world.lose("r2")
    assert world.end(caller) is None
    world.link("r2")
    world.grant("r2", "t1")
    assert world.end(caller) == slot("r2", "t1")


def test_a_replica_that_has_ended_holds_nothing() -> None:
    world = world_of()
    caller = world.reserve(request_id="id", attempt=1)
    world.deny("r1", Reason.SLOT_UNKNOWN)
    world.lose("r2")
    world.backends["b"] = ["r1"]
    world.push()
    assert world.got_ops("r1") == ["LookUp", "Reserve"]
    world.grant("r1", "t1")
    assert world.end(caller) == slot("r1", "t1")


def test_only_the_requested_replica_is_queried() -> None:
    world = world_of()
    world.reserve(request_id="id", attempt=1, replica_id="r2")
    assert (world.got_ops("r1"), world.got_ops("r2")) == ([], ["LookUp"])
    other = world_of()
    other.reserve(request_id="id", attempt=1, excluded=["r2"])
    assert (other.got_ops("r1"), other.got_ops("r2")) == (["LookUp"], [])


def test_a_caller_that_leaves_reserves_nothing() -> None:
    world = world_of("r1")
    world.leave(world.reserve(request_id="id", attempt=1))
    world.deny("r1", Reason.SLOT_UNKNOWN)
    assert world.got_ops("r1") == ["LookUp"]
    assert not world.scheduler._parts.slot_operations.look_ups.under_way


def test_a_reservation_whose_link_breaks_is_looked_for_at_its_replica() -> None:
    world = world_of("r1")
    caller = world.reserve(request_id="id")
    world.lose("r1")
    world.link("r1")
    look_up = world.ops["r1"][-1]
    assert isinstance(look_up, OutgoingLookUp)
    assert look_up.request.order == (0, 1)
    world.grant("r1", "t1")
    assert world.end(caller) == slot("r1", "t1")
    without = world_of("r1")
    without.reserve()
    without.lose("r1")
    without.link("r1")
    assert without.got_ops("r1") == ["Reserve", "Reserve"], "without an id it cannot be"


def test_an_overtaken_reservation_fails_unless_its_caller_is_the_newer_one() -> None:
    world = world_of("r1")
    first = world.reserve(request_id="id")
    world.deny("r1", Reason.CANCELLED)
    assert world.reason(first) is Reason.CANCELLED

    older, newer = world.reserve(request_id="id2"), world.reserve(request_id="id2", attempt=2)
    world.deny("r1", Reason.CANCELLED)
    assert world.end(older) is world.end(newer) is None
    look_up = world.ops["r1"][-1]
    assert isinstance(look_up, OutgoingLookUp)
    assert look_up.request.order == (2, 0)
    world.grant("r1", "t1")
    assert world.end(older) == world.end(newer) == slot("r1", "t1")


def test_a_slot_without_a_caller_is_released_unless_a_newer_attempt_has_it() -> None:
    world = world_of("r1")
    world.leave(world.reserve(request_id="id", attempt=0))
    world.grant("r1", "t1")
    release = world.ops["r1"][-1]
    assert isinstance(release, OutgoingRelease)
    assert release.request is not None
    assert release.request.order == (0, 0)


def test_too_many_replicas_are_no_proof() -> None:
    world = world_of(*(f"r{number}" for number in range(MAX_QUERIED + 1)))
    caller = world.reserve(request_id="id", attempt=1)
    assert world.reason(caller) is Reason.BACKEND_UNAVAILABLE
    assert not any(world.ops.values())


@pytest.mark.parametrize("by", ["identity", "flow"])
def test_one_caller_leaves_queries_for_others(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_look_ups, "MAX_UNDER_WAY", 16)
    monkeypatch.setattr(slot_look_ups, "MAX_QUERIED", 2)
    world = world_of()
    flow, other = Flow(), Flow()
    mine, others = ({"identity": "a"}, {"identity": "b"}) if by == "identity" else ({"flow": flow}, {"flow": other})
    got = [world.reason(world.reserve(request_id=f"a{at}", attempt=1, **mine)) for at in range(8)]
    assert got == [None] * 6 + [Reason.QUEUE_FULL] * 2, "three quarters"
    assert world.reason(world.reserve(request_id="b", attempt=1, **others)) is None
    for name in ("r1", "r2"):
        for op in list(world.ops[name]):
            world.answer(name, Failure(reason=Reason.SLOT_UNKNOWN, message=""), op.op_id)
    assert not world.scheduler._parts.slot_operations.look_ups._bound.total
    assert world.reason(world.reserve(request_id="a9", attempt=1, **mine)) is None, "they are given back"


def test_queries_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_look_ups, "MAX_UNDER_WAY", 3)
    world = world_of()
    first = world.reserve(request_id="id", attempt=1)
    refused = world.reserve(request_id="id2", attempt=1)
    assert world.reason(refused) is Reason.QUEUE_FULL
    world.deny("r1", Reason.SLOT_UNKNOWN)
    again = world.reserve(request_id="id2", attempt=2)
    assert world.end(first) is world.end(again) is None
    assert world.got_ops("r1") == world.got_ops("r2") == ["LookUp", "LookUp"]
