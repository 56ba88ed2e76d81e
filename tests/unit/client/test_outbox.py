from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slotmesh.client.calls.maps import Gather
from slotmesh.client.calls.outbox import FRAME_CALLS, TURN_CALLS, CallOutbox, LargeCalls
from slotmesh.client.calls.queues import CallQueue, TenantShares
from slotmesh.client.calls.waiting_runs import WaitingRunQueue
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES
from tests.unit.client.parts import NONE_LARGE, Sink, make_call, make_spec

PLENTY = 10**9


def taken(outbox: CallOutbox, calls: int = PLENTY, nbytes: int = PLENTY, *, alone: bool = False) -> list[list[bytes]]:
    """The payloads of each batch of the next frame."""
    frame = outbox.take(calls, nbytes, LargeCalls(nbytes, is_free=alone))
    for part in frame:
        assert part.nbytes == sum(map(len, part.payloads))
        assert [sink.name for sink in part.sinks] == part.payloads
    return [part.payloads for part in frame]


def test_neighbours_leave_as_one_batch() -> None:
    outbox, spec = CallOutbox(), make_spec()
    for payload in (b"1", b"2", b"3"):
        make_call(outbox, spec, payload)
    assert taken(outbox) == [[b"1", b"2", b"3"]]
    assert not outbox
    assert taken(outbox) == []


def test_five_hundred_lanes_leave_in_one_frame() -> None:
    outbox = CallOutbox()
    for number in range(512):
        make_call(outbox, make_spec(ordering_key=str(number)), b"x")
    assert len(taken(outbox)) == 512


def test_calls_of_two_lanes_that_alternate_leave_as_two_batches() -> None:
    outbox, a, b = CallOutbox(), make_spec(), make_spec()
    for payload in (b"1", b"2", b"3"):
        make_call(outbox, a, b"a" + payload)
        make_call(outbox, b, b"b" + payload)
    assert taken(outbox) == [[b"a1", b"a2", b"a3"], [b"b1", b"b2", b"b3"]]


def test_methods_of_one_lane_keep_their_order() -> None:
    queue: WaitingRunQueue = CallQueue()
    outbox, add, get = CallOutbox(), make_spec("add", queue), make_spec("get", queue)
    for spec, payload in ((add, b"1"), (add, b"2"), (get, b"3"), (add, b"4")):
        make_call(outbox, spec, payload)
    assert taken(outbox) == [[b"1", b"2"], [b"3"], [b"4"]]


def test_a_window_in_calls_is_kept_and_the_rest_waits_in_order() -> None:
    outbox, spec = CallOutbox(), make_spec()
    for number in range(5):
        make_call(outbox, spec, b"%d" % number)
    assert taken(outbox, calls=2) == [[b"0", b"1"]]
    assert taken(outbox, calls=0) == []
    assert taken(outbox, calls=-3) == []
    make_call(outbox, spec, b"5")
    assert taken(outbox) == [[b"2", b"3", b"4"], [b"5"]]


def test_a_window_in_bytes_is_kept() -> None:
    outbox, spec = CallOutbox(), make_spec()
    for payload in (b"aa", b"bb", b"cc"):
        make_call(outbox, spec, payload)
    assert taken(outbox, nbytes=5) == [[b"aa", b"bb"]]
    assert taken(outbox, nbytes=1) == []
    assert taken(outbox, nbytes=2) == [[b"cc"]]


def test_one_call_may_be_larger_than_the_window() -> None:
    outbox, spec = CallOutbox(), make_spec()
    make_call(outbox, spec, b"abc")
    make_call(outbox, spec, b"d")
    assert taken(outbox, nbytes=2) == []
    assert taken(outbox, nbytes=2, alone=True) == [[b"abc"], [b"d"]]


def test_frames_are_bounded_in_calls_and_bytes() -> None:
    outbox, spec = CallOutbox(), make_spec()
    for _ in range(FRAME_CALLS + 1):
        make_call(outbox, spec, b"")
    assert [len(batch) for batch in taken(outbox)] == [FRAME_CALLS]
    assert [len(batch) for batch in taken(outbox)] == [1]
    fitting = MAX_FRAME_BYTES // CHUNK_BYTES
    for size in [*[CHUNK_BYTES] * (fitting + 1), 2 * CHUNK_BYTES, 1]:
        make_call(outbox, spec, b"x" * size)
    assert [len(batch) for batch in taken(outbox)] == [fitting]
    assert [len(batch) for batch in taken(outbox)] == [3], "what follows in chunks takes no room"


def test_queues_take_turns() -> None:
    outbox, flood, single = CallOutbox(), make_spec(), make_spec()
    for _ in range(3 * TURN_CALLS):
        make_call(outbox, flood, b"f")
    make_call(outbox, single, b"s")
    batches = taken(outbox, calls=TURN_CALLS + 1)
    assert [len(batch) for batch in batches] == [TURN_CALLS, 1]
    assert batches[1] == [b"s"]


def test_a_call_that_nobody_wants_does_not_leave() -> None:
    outbox, spec = CallOutbox(), make_spec()
    sinks = [make_call(outbox, spec, b"%d" % number) for number in range(5)]
    taken(outbox, calls=1)
    sinks[1].cancelled = sinks[3].cancelled = True
    assert taken(outbox) == [[b"2", b"4"]]


def test_a_queue_with_nothing_wanted_left_is_idle_and_usable() -> None:
    outbox, spec = CallOutbox(), make_spec()
    told: list[str] = []
    make_call(outbox, spec, b"1").cancelled = True
    spec.queue.call_when_idle(lambda: told.append("idle"))
    assert taken(outbox) == []
    assert not outbox
    assert told == ["idle"]
    make_call(outbox, spec, b"2")
    assert taken(outbox) == [[b"2"]]


def test_a_queue_is_idle_when_all_that_was_sent_is_settled() -> None:
    outbox, spec = CallOutbox(), make_spec()
    told: list[str] = []
    make_call(outbox, spec, b"1")
    make_call(outbox, spec, b"2")
    spec.queue.call_when_idle(lambda: told.append("idle"))
    taken(outbox)
    spec.queue.settled(1)
    assert not told
    spec.queue.settled(1)
    assert told == ["idle"]
    spec.queue.call_when_idle(lambda: told.append("at once"))
    assert told == ["idle", "at once"]


def test_what_is_never_sent_comes_out_in_order() -> None:
    outbox, spec = CallOutbox(), make_spec()
    for number in range(4):
        make_call(outbox, spec, b"%d" % number)
    taken(outbox, calls=1)
    parts = list(outbox.drain())
    assert [sink.name for part in parts for sink in part.sinks] == [b"1", b"2", b"3"]
    assert all(part.first == 0 for part in parts)
    assert not outbox
    make_call(outbox, spec, b"4")
    assert taken(outbox) == [[b"4"]]


@pytest.mark.asyncio
async def test_a_map_leaves_in_parts_that_know_their_places() -> None:
    outbox, spec = CallOutbox(), make_spec()
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    outbox.add_map(spec, [b"0", b"1", b"2", b"3"], Gather(6, future, keeps_failures=False), 2)
    make_call(outbox, spec, b"later")
    first = outbox.take(3, PLENTY, NONE_LARGE)
    assert [(part.offset, part.payloads) for part in first] == [(2, [b"0", b"1", b"2"])]
    future.cancel()
    assert taken(outbox) == [[b"later"]]


def test_sinks_are_only_asked_whether_they_are_done() -> None:
    outbox, spec = CallOutbox(), make_spec()
    sink = Sink(b"1")
    assert make_call(outbox, spec, b"1", sink) is sink
    assert taken(outbox) == [[b"1"]]


def test_options_that_differ_from_call_to_call_fill_a_frame_too() -> None:
    outbox, specs = CallOutbox(), [make_spec("m" * (MAX_FRAME_BYTES // 4)) for _ in range(6)]
    for spec in specs:
        make_call(outbox, spec, b"x")
    assert [len(taken(outbox)) for _ in range(2)] == [4, 2]


# -- tenants -----------------------------------------------------------------------------------------------------------


def shares_of(pending: PendingCalls, calls: int, nbytes: int = PLENTY) -> TenantShares:
    return TenantShares(pending.by_tenant(), calls - pending.calls, nbytes - pending.nbytes)


def send(outbox: CallOutbox, pending: PendingCalls, calls: int, nbytes: int = PLENTY) -> list[bytes]:
    """Sends a frame as streams do, in a window of so many calls and bytes. Returns its payloads."""
    parts = outbox.take(
        calls - pending.calls,
        nbytes - pending.nbytes,
        LargeCalls(nbytes, is_free=not pending.calls),
        shares=shares_of(pending, calls, nbytes),
    )
    for part in parts:
        pending.add(part)
    return [payload for part in parts for payload in part.payloads]


def test_tenants_take_turns_however_many_queues_one_has() -> None:
    outbox = CallOutbox()
    for number in range(100):
        make_call(outbox, make_spec(f"m{number}", tenant="a"), b"a")
    make_call(outbox, make_spec(tenant="b"), b"b")
    assert taken(outbox, calls=2) == [[b"a"], [b"b"]]


def test_a_tenant_leaves_room_in_the_window_for_others() -> None:
    outbox, pending = CallOutbox(), PendingCalls()
    spec = make_spec(tenant="a")
    for number in range(100):
        make_call(outbox, spec, b"a%d" % number)
    assert len(send(outbox, pending, calls=64)) == 32
    assert send(outbox, pending, calls=64) == [], "it has as much as it leaves"
    make_call(outbox, make_spec(tenant="b"), b"b")
    make_call(outbox, make_spec(), b"none")
    assert send(outbox, pending, calls=64) == [b"b", b"none"]
    list(pending.settle(range(1, 5)))
    assert send(outbox, pending, calls=64) == [b"a32", b"a33", b"a34"], "half of what it leaves more"


def test_calls_without_a_tenant_leave_room_once_a_tenant_was_named() -> None:
    outbox, pending = CallOutbox(), PendingCalls()
    assert not outbox.rota.has_tenants
    make_call(outbox, make_spec(tenant="b"), b"b")
    assert outbox.rota.has_tenants
    assert send(outbox, pending, calls=64) == [b"b"]
    spec = make_spec()
    for _ in range(100):
        make_call(outbox, spec, b"x")
    assert len(send(outbox, pending, calls=64)) == 31


def test_a_tenant_leaves_bytes_of_the_window_for_others() -> None:
    outbox, pending = CallOutbox(), PendingCalls()
    spec = make_spec(tenant="a")
    for _ in range(10):
        make_call(outbox, spec, b"a" * 100)
    assert len(send(outbox, pending, calls=64, nbytes=1_000)) == 5
    make_call(outbox, make_spec(tenant="b"), b"b" * 600)
    assert send(outbox, pending, calls=64, nbytes=1_100) == [b"b" * 600], "one call of a tenant that has none may leave"


def test_what_one_tenant_may_not_add_keeps_its_place() -> None:
    outbox, pending = CallOutbox(), PendingCalls()
    spec = make_spec(tenant="a")
    for number in range(10):
        make_call(outbox, spec, b"a%d" % number)
    sent = send(outbox, pending, calls=4)
    while outbox:
        list(pending.settle(range(pending.next_id - pending.calls, pending.next_id)))
        sent += send(outbox, pending, calls=4)
    assert sent == [b"a%d" % number for number in range(10)]


def test_a_lane_of_two_tenants_keeps_its_order() -> None:
    queue: WaitingRunQueue = CallQueue()
    outbox, pending = CallOutbox(), PendingCalls()
    a, b = make_spec("m", queue, tenant="a"), make_spec("m", queue, tenant="b")
    for number, spec in enumerate([a, a, b, a, b, b, a]):
        make_call(outbox, spec, b"%d" % number)
    sent: list[bytes] = []
    while outbox:
        sent += send(outbox, pending, calls=3)
        list(pending.drain())
    assert sent == [b"%d" % number for number in range(7)]


def test_a_queue_that_is_passed_over_keeps_its_place_whatever_leaves_meanwhile() -> None:
    outbox, large, small = CallOutbox(), make_spec("large", tenant="a"), make_spec("small", tenant="a")
    make_call(outbox, large, b"x" * 200)
    make_call(outbox, small, b"small")
    taken_now = outbox.take(10, 100, LargeCalls(100, is_free=False))
    assert [part.payloads for part in taken_now] == [[b"small"]]
    assert outbox
    later = outbox.take(10, 100, LargeCalls(100, is_free=True))
    assert [part.payloads for part in later] == [[b"x" * 200]]
    assert not outbox
