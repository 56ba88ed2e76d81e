"""Slots by request ids: what an attempt finds, and what older attempts get after a look-up."""

from __future__ import annotations

import pytest

from replica_service.core import failures
from replica_service.core.call_metadata import ReservedSlot
from replica_service.core.requested_slots import FENCE_S, RequestedSlots
from replica_service.core.slot_table import SlotTable
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.errors import Failure, Reason


def identity(attempt: int = 0, resend: int = 0, name: str = "1", **fields: str) -> ReservationIdentity:
    return ReservationIdentity(name, fields.get("digest", "d").encode(), fields.get("caller", ""), attempt, resend)


def table_with_slot(request: ReservationIdentity) -> tuple[SlotTable, ReservedSlot]:
    table = SlotTable()
    return table, table.grant(b"s", "e", 10.0, 0.0, request=request)


def test_a_later_attempt_finds_the_slot_until_its_lease_ends() -> None:
    table, slot = table_with_slot(identity())
    assert table.requested.look_up(identity(1), 9.9) is slot
    assert table.requested.look_up(identity(2), 10.0) is failures.NOT_RESERVED, "before the timer has ended it"
    table.expire(10.0)
    assert not len(table.requested)


@pytest.mark.parametrize("end", ["dispatch", "release", "expire"])
def test_the_id_is_forgotten_with_its_slot(end: str) -> None:
    table, slot = table_with_slot(identity())
    match end:
        case "dispatch":
            table.dispatch(slot.secret, "", 1.0)
        case "release":
            assert table.release(slot.secret, 1.0)
        case _:
            table.expire(10.0)
    assert not len(table.requested)
    assert table.requested.look_up(identity(1), 10.0) is failures.NOT_RESERVED


def test_a_slot_that_a_direct_stream_holds_is_found() -> None:
    table, slot = table_with_slot(identity())
    assert table.hold(slot.secret, "", 5.0, 1.0) is slot
    assert table.requested.find(identity(1), 5.0) is slot
    table.begin(slot)
    assert table.requested.find(identity(1), 60.0) is slot, "its lease is suspended while a call runs"
    table.let_go(slot, 60.0)
    assert table.requested.find(identity(1), 60.0) is None


def test_a_look_up_fences_older_attempts_for_a_minute() -> None:
    requested = RequestedSlots()
    assert requested.look_up(identity(1), 0.0) is failures.NOT_RESERVED
    assert requested.find(identity(0, 9), 1.0) is failures.SUPERSEDED
    assert requested.find(identity(1), 1.0) is None
    assert requested.find(identity(1, 1), 1.0) is None
    assert requested.find(identity(name="2"), 1.0) is None
    assert requested.find(identity(caller="client/a"), 1.0) is None
    assert requested.look_up(identity(0), 1.0) is failures.SUPERSEDED
    assert requested.find(identity(0), FENCE_S) is None


def test_an_older_attempt_neither_finds_nor_releases_the_slot_of_a_newer_one() -> None:
    table, slot = table_with_slot(identity())
    assert table.requested.look_up(identity(1), 1.0) is slot
    assert table.requested.find(identity(0), FENCE_S + 2.0) is None, "the lease is over"
    assert table.requested.find(identity(0), 2.0) is failures.SUPERSEDED
    assert not table.release(slot.secret, 2.0, identity(0))
    assert table.release(slot.secret, 2.0, identity(1))


def test_the_id_of_another_reservation_is_refused() -> None:
    table, slot = table_with_slot(identity())
    refused = table.requested.look_up(identity(1, digest="other"), 1.0)
    assert isinstance(refused, Failure)
    assert (refused.reason, refused.metadata["field"]) == (Reason.BAD_REQUEST, "request_id")
    assert table.requested.look_up(identity(1), 1.0) is slot


def test_look_ups_are_bounded_and_of_one_caller_half_of_the_room() -> None:
    requested = RequestedSlots(max_fences=8)
    for number in range(4):
        assert requested.look_up(identity(1, name=f"a{number}", caller="client/a"), 0.0) is failures.NOT_RESERVED
    assert requested.look_up(identity(1, name="a4", caller="client/a"), 0.0) is failures.TOO_MANY_LOOK_UPS
    assert requested.look_up(identity(2, name="a3", caller="client/a"), 0.0) is failures.NOT_RESERVED
    for number in range(4):
        assert requested.look_up(identity(1, name=f"b{number}"), 0.0) is failures.NOT_RESERVED
    assert requested.look_up(identity(1, name="b4"), 0.0) is failures.TOO_MANY_LOOK_UPS
    assert requested.fences == 8
    assert requested.look_up(identity(1, name="a4", caller="client/a"), FENCE_S) is failures.NOT_RESERVED
    assert requested.fences == 1
