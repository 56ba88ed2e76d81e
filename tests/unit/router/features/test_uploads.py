"""Calls whose payloads come in chunks keep their place among those of their key, and no other's."""

from __future__ import annotations

import pytest

from router_service.core.events import (
    CallerLeft,
    CallsCancelled,
    CallsResent,
    CallsSubmitted,
    ChunkArrived,
    SessionDisconnected,
    UploadCompleted,
    UploadFailed,
)
from router_service.core.features.uploads import CROWDED, CROWDED_STALL_S, FLOOR_BYTES, MAX_UPLOAD_BYTES, STALL_S
from router_service.core.runs import Caller
from router_service.core.scheduler import RouterScheduler
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.chunks import Announced, PayloadParts
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller, options

MB = 1024 * 1024


def payload_of(call_id: int) -> PayloadParts:
    return PayloadParts([b"%d" % call_id])


def announce(world: World, call_id: int, by: Caller, size: int = 100, **fields: object) -> None:
    world.step(CallsSubmitted(by, "e", [(options(**fields), [call_id], [Announced(size)])]))


def bring(world: World, call_id: int, by: Caller, size: int) -> None:
    world.step(ChunkArrived(by, call_id, size))


def upload(world: World, call_id: int, by: Caller) -> None:
    world.step(UploadCompleted(by, call_id, payload_of(call_id)))


def test_a_call_is_sent_when_its_payload_is_complete() -> None:
    world, client = World({"b": ["r"]}), caller()
    announce(world, 1, client)
    assert world.got("r") == []
    assert world.scheduler._parts.uploads.held.find(client, 1)
    upload(world, 1, client)
    assert world.got("r") == [1]
    assert not world.scheduler._parts.uploads.held.find(client, 1)


def test_calls_of_its_key_wait_behind_it_in_order_and_others_pass() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], by=client, ordering_key="k")
    announce(world, 3, client, ordering_key="k")
    world.submit([4], by=client, ordering_key="k")
    world.submit([5], by=client, ordering_key="j")
    world.submit([6], by=client)
    assert sorted(world.got("r")) == [5, 6]
    upload(world, 3, client)
    assert sorted(world.got("r")) == [5, 6]
    upload(world, 1, client)
    assert world.got("r")[2:] == [1, 2, 3, 4]


def test_another_caller_of_the_key_does_not_wait() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], ordering_key="k")
    assert world.got("r") == [2]


def test_what_is_taken_back_before_it_is_complete_keeps_nobody_waiting() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], by=client, ordering_key="k")
    world.step(CallsCancelled(client, [(1, 1)]))
    assert world.reasons([1]) == {Reason.CANCELLED}
    assert world.got("r") == [2]
    upload(world, 1, client)
    assert world.got("r") == [2]


def test_a_deadline_counts_while_the_payload_is_under_way() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k", timeout_s=5.0)
    world.submit([2], by=client, ordering_key="k")
    world.at(6.0)
    assert world.reasons([1]) == {Reason.DEADLINE_IN_QUEUE}
    assert world.got("r") == [2]


def test_a_payload_that_will_never_be_complete_fails_its_call_alone() -> None:
    world, client = World({"b": ["r"]}, owner=("r", 1)), caller()
    announce(world, 1, client, ordering_key="k")
    world.submit([2], by=client, ordering_key="k")
    failure = Failure(reason=Reason.BAD_REQUEST, message="chunk.offset: 7, where 0 comes next")
    world.step(UploadFailed(client, 1, failure))
    assert (world.reasons([1]), world.failures[1].executed) == ({Reason.BAD_REQUEST}, Executed.NO)
    assert world.got("r") == [2]


@pytest.mark.parametrize("is_session", [False, True])
def test_a_caller_that_goes_leaves_nothing_behind(is_session: bool) -> None:
    world = World({"b": ["r"]})
    client = world.connect(1) if is_session else caller()
    announce(world, 1, client)
    world.step(SessionDisconnected(client) if is_session else CallerLeft(client))
    assert not client.runs
    upload(world, 1, client)
    assert world.got("r") == []


def test_a_session_is_asked_for_when_the_payload_of_what_comes_again_is_complete() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect(2, (1, 2))
    keyed = options(ordering_key="k")
    world.step(CallsResent(client, "e", [(keyed, [1], [Announced(9)])], 0.0, world.roster))
    world.resend([2], by=client, ordering_key="k")
    world.submit([3], by=client, ordering_key="k")
    world.reconcile("r", client)
    assert world.got("r") == []
    upload(world, 1, client)
    assert world.got("r") == [1, 2, 3]
    world.complete("r")
    assert world.reasons([2, 3]) == {OK}


# -- how much, and how long --------------------------------------------------------------------------------------------


def bounded(max_upload_bytes: int) -> World:
    world = World({"b": ["r"]}, owner=("r", 1), links_at_once=False)
    world.scheduler = RouterScheduler(lambda: 0.5, max_upload_bytes=max_upload_bytes)
    world.links_at_once = True
    world.push()
    return world


def test_what_all_callers_announce_is_bounded() -> None:
    world, others = bounded(10 * MB), [caller() for _ in range(3)]
    for call_id, by in enumerate(others, 1):
        announce(world, call_id, by, 5 * MB)
    assert world.reasons([3]) == {Reason.QUEUE_FULL}
    failure = world.failures[3]
    assert (failure.executed, failure.metadata["limit"]) == (Executed.NO, str(10 * MB))
    assert failure.retry_delay_s
    assert "max_upload_bytes" in failure.message
    upload(world, 1, others[0])
    announce(world, 4, others[2], 5 * MB)
    upload(world, 4, others[2])
    upload(world, 2, others[1])
    assert sorted(world.got("r")) == [1, 2, 4]


def test_who_has_little_under_way_is_let_in_where_others_have_taken_all() -> None:
    world, little, large = bounded(10 * MB), caller(), caller()
    announce(world, 1, large, 10 * MB)
    announce(world, 2, little, FLOOR_BYTES)
    announce(world, 3, little, 100)
    announce(world, 4, large, 100)
    assert world.reasons([3, 4]) == {Reason.QUEUE_FULL}
    upload(world, 2, little)
    assert world.got("r") == [2]


def test_no_caller_has_all_of_it_with_several_payloads() -> None:
    world, client, other = bounded(8 * MB), caller(), caller()
    announce(world, 1, client, 5 * MB)
    announce(world, 2, client, MB)
    announce(world, 3, client, MB)
    assert world.reasons([3]) == {Reason.QUEUE_FULL}
    assert world.failures[3].metadata["limit"] == str(6 * MB)
    announce(world, 4, other, 2 * MB)
    upload(world, 4, other)
    upload(world, 1, client)
    announce(world, 5, client, 5 * MB)
    upload(world, 5, client)
    assert world.got("r") == [4, 1, 5]


def test_callers_with_little_have_no_more_than_a_reserve_together() -> None:
    world, large, many = bounded(16 * MB), caller(), [caller() for _ in range(4)]
    announce(world, 1, large, 16 * MB)
    for call_id, by in enumerate(many, 2):
        announce(world, call_id, by, 600_000)
    assert {each for each in range(2, 6) if each in world.failures} == {5}


def test_the_largest_payload_is_taken_where_nothing_else_is_under_way() -> None:
    world, client = World({"b": ["r"]}), caller()
    announce(world, 1, client, MAX_PAYLOAD_BYTES)
    upload(world, 1, client)
    assert world.got("r") == [1]


def test_one_payload_is_always_taken_however_large() -> None:
    world, client = bounded(MB), caller()
    announce(world, 1, client, 9 * MB)
    upload(world, 1, client)
    assert world.got("r") == [1]


def test_what_waits_behind_a_payload_counts_until_it_goes_on() -> None:
    world, client = bounded(11 * MB // 4), caller()
    announce(world, 1, client, MB, ordering_key="k")
    announce(world, 2, client, MB, ordering_key="k")
    world.step(CallsSubmitted(client, "e", [(options(ordering_key="k"), [3], [b"x" * 100_000])]))
    assert world.reasons([3]) == {Reason.QUEUE_FULL}
    world.submit([4], by=client, ordering_key="j")
    upload(world, 2, client)
    announce(world, 5, client, MB)
    assert world.reasons([5]) == {Reason.QUEUE_FULL}, "2 is complete, and waits for 1"
    upload(world, 1, client)
    announce(world, 6, client, MB)
    upload(world, 6, client)
    assert world.got("r") == [4, 1, 2, 6]


@pytest.mark.parametrize("how", ["taken back", "spoilt", "left"])
def test_what_ends_makes_room(how: str) -> None:
    world, client, other = bounded(10 * MB), caller(), caller()
    announce(world, 1, client, 10 * MB)
    bring(world, 1, client, MB)
    if how == "taken back":
        world.step(CallsCancelled(client, [(1, 1)]))
    elif how == "spoilt":
        world.step(UploadFailed(client, 1, Failure(reason=Reason.BAD_REQUEST, message="no")))
    else:
        world.step(CallerLeft(client))
    announce(world, 2, other, 10 * MB)
    upload(world, 2, other)
    assert world.got("r") == [2]


def test_a_call_that_is_sent_again_and_finds_no_room_may_have_run() -> None:
    world, client = bounded(MB), caller()
    announce(world, 1, client, MB)
    again = world.connect(2, (2, 2))
    world.step(CallsResent(again, "e", [(options(), [2], [Announced(2 * MB)])], 0.0, world.roster))
    assert world.failures[2].executed is Executed.UNKNOWN


def test_who_brings_nothing_more_loses_what_is_under_way() -> None:
    world, stopped, slow = World({"b": ["r"]}, owner=("r", 1)), caller(), caller()
    announce(world, 1, stopped, MB, ordering_key="k")
    world.submit([2], by=stopped, ordering_key="k")
    announce(world, 3, slow, MB)
    world.at(STALL_S - 1)
    bring(world, 3, slow, 100)
    world.at(STALL_S)
    assert world.reasons([1]) == {Reason.QUEUE_TIMEOUT}
    assert world.failures[1].executed is Executed.NO
    assert world.got("r") == [2]
    world.at(2 * STALL_S - 2)
    upload(world, 3, slow)
    assert world.got("r") == [2, 3]


def test_memory_that_is_short_is_not_left_to_who_brings_nothing() -> None:
    world, stopped, slow = World({"b": ["r"]}), caller(), caller()
    crowded = int(CROWDED * MAX_UPLOAD_BYTES)
    announce(world, 1, stopped, crowded)
    bring(world, 1, stopped, crowded - 1)
    announce(world, 2, slow, MB)
    world.at(CROWDED_STALL_S + 1)
    assert not world.failures
    bring(world, 2, slow, 100)
    world.at(world.now)
    assert world.reasons([1]) == {Reason.QUEUE_TIMEOUT}
    world.at(world.now + STALL_S - 1)
    upload(world, 2, slow)
    assert world.got("r") == [2]


def test_chunks_of_calls_that_have_ended_keep_nothing_alive() -> None:
    world, client = World({"b": ["r"]}), caller()
    announce(world, 1, client)
    announce(world, 2, client)
    world.step(CallsCancelled(client, [(1, 1)]))
    world.at(STALL_S - 1)
    bring(world, 1, client, 50)
    world.at(STALL_S)
    assert world.reasons([2]) == {Reason.QUEUE_TIMEOUT}
