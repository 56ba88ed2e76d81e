from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.maps import Gather
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.sent_parts import SentPart, deliver, fail, finish
from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, DecodeError, encode
from slotmesh.errors import Executed, Failure, InternalError, Reason, ReplicaLost, SlotmeshError

LOST = Failure(reason=Reason.REPLICA_LOST, message="gone", executed=Executed.UNKNOWN, metadata={"replica_id": "r1"})


def part_of(futures: list[asyncio.Future[Any]], content_type: str = MSGPACK, wanted: Any = Any) -> SentPart:
    spec = CallSpec("digits", "add", ViewOptions(content_type=content_type), CallQueue(), wanted)
    part = SentPart(spec, [b""] * len(futures), 0, list(futures))
    part.first = 11
    return part


def map_of(count: int, *, keeps_failures: bool, wanted: Any = Any) -> tuple[SentPart, asyncio.Future[list[Any]]]:
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    spec = CallSpec("digits", "add", ViewOptions(), CallQueue(), wanted)
    part = SentPart(spec, [b""] * count, 0, [], Gather(count, future, keeps_failures=keeps_failures), 0)
    part.first = 11
    return part, future


def futures(count: int) -> list[asyncio.Future[Any]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


@pytest.mark.asyncio
async def test_results_reach_their_futures() -> None:
    waiting = futures(3)
    part = part_of(waiting)
    deliver(part, 1, [encode(MSGPACK, "b"), encode(MSGPACK, "c")], MSGPACK)
    assert part.sinks == [waiting[0], None, None], "results live as long as the slowest call"
    deliver(part, 0, [encode(MSGPACK, "a")], MSGPACK)
    assert [await future for future in waiting] == ["a", "b", "c"]


@pytest.mark.asyncio
async def test_bytes_are_results_as_they_are_under_either_name() -> None:
    waiting = futures(2)
    part = part_of(waiting, OCTET_STREAM)
    deliver(part, 0, [b"a"], OCTET_STREAM)
    deliver(part, 1, [b"b"], "")
    assert [await future for future in waiting] == [b"a", b"b"]


@pytest.mark.asyncio
async def test_cancelled_futures_are_left_alone() -> None:
    waiting = futures(4)
    part = part_of(waiting)
    waiting[0].cancel()
    waiting[2].cancel()
    deliver(part, 0, [encode(MSGPACK, "a"), encode(MSGPACK, "b")], MSGPACK)
    fail(part, 2, 2, LOST)
    assert await waiting[1] == "b"
    assert waiting[0].cancelled()
    assert waiting[2].cancelled()
    with pytest.raises(ReplicaLost):
        await waiting[3]


@pytest.mark.asyncio
async def test_a_failure_says_which_call_failed_and_where() -> None:
    (future,) = futures(1)
    part = part_of([*futures(2), future])
    fail(part, 2, 1, LOST)
    with pytest.raises(ReplicaLost) as caught:
        await future
    error = caught.value
    assert repr(error) == "ReplicaLost('UNAVAILABLE/REPLICA_LOST: gone')"
    assert (error.endpoint, error.method, error.call_id, error.replica_id) == ("digits", "add", 13, "r1")
    assert (error.status, error.reason, error.executed) == ("UNAVAILABLE", Reason.REPLICA_LOST, Executed.UNKNOWN)


@pytest.mark.asyncio
async def test_a_result_that_cannot_be_decoded_fails_its_own_call_only() -> None:
    waiting = futures(3)
    deliver(part_of(waiting, wanted=int), 0, [encode(MSGPACK, value) for value in (1, "two", 3)], MSGPACK)
    assert (await waiting[0], await waiting[2]) == (1, 3)
    with pytest.raises(DecodeError, match=r"result of digits\.add is not what was asked for: value: expected int, got"):
        await waiting[1]


@pytest.mark.asyncio
async def test_a_result_of_another_content_type_is_a_defect_of_the_peer() -> None:
    (future,) = futures(1)
    deliver(part_of([future]), 0, [b"1"], JSON)
    with pytest.raises(InternalError, match="encoded as application/json") as caught:
        await future
    assert caught.value.executed is Executed.YES


@pytest.mark.asyncio
async def test_a_map_is_done_when_every_call_has_its_outcome() -> None:
    part, future = map_of(4, keeps_failures=False)
    deliver(part, 2, [encode(MSGPACK, 2), encode(MSGPACK, 3)], MSGPACK)
    assert not future.done()
    deliver(part, 0, [encode(MSGPACK, 0), encode(MSGPACK, 1)], MSGPACK)
    assert await future == [0, 1, 2, 3]


@pytest.mark.asyncio
async def test_a_map_raises_the_first_failure_by_input_order_after_all_have_ended() -> None:
    part, future = map_of(4, keeps_failures=False)
    fail(part, 2, 2, LOST)
    fail(part, 1, 1, LOST)
    assert not future.done()
    deliver(part, 0, [encode(MSGPACK, 0)], MSGPACK)
    with pytest.raises(ReplicaLost) as caught:
        await future
    assert caught.value.call_id == 12


@pytest.mark.asyncio
async def test_a_map_can_keep_its_failures() -> None:
    part, future = map_of(4, keeps_failures=True, wanted=int)
    fail(part, 2, 2, LOST)
    deliver(part, 0, [encode(MSGPACK, 0), encode(MSGPACK, "one")], MSGPACK)
    results = await future
    assert results[0] == 0
    assert [type(result) for result in results[1:]] == [DecodeError, ReplicaLost, ReplicaLost]
    assert [result.call_id for result in results[2:]] == [13, 14]


@pytest.mark.asyncio
async def test_a_cancelled_map_takes_late_outcomes_in_silence() -> None:
    part, future = map_of(2, keeps_failures=False)
    future.cancel()
    deliver(part, 0, [encode(MSGPACK, 0)], MSGPACK)
    fail(part, 1, 1, LOST)
    assert future.cancelled()


@pytest.mark.asyncio
async def test_dropped_futures_of_one_failure_are_reported_once() -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    fail(part_of(futures(100)), 0, 100, LOST)
    assert [str(report["exception"]) for report in reports] == ["UNAVAILABLE/REPLICA_LOST: gone"]
    fail(part_of(futures(100)), 0, 100, LOST, is_repeated=True)
    assert len(reports) == 1


@pytest.mark.asyncio
async def test_what_has_ended_without_a_result_is_none() -> None:
    waiting = futures(3)
    part = part_of(waiting)
    waiting[1].cancel()
    finish(part, 1, 2)
    assert waiting[2].result() is None
    assert not waiting[0].done()
    together, future = map_of(2, keeps_failures=False)
    finish(together, 0, 2)
    assert await future == [None, None]


@pytest.mark.asyncio
async def test_results_that_nobody_asked_for_are_not_looked_at() -> None:
    waiting = futures(1)
    spec = CallSpec("digits", "add", ViewOptions(no_reply=True), CallQueue())
    deliver(SentPart(spec, [b""], 0, list(waiting)), 0, [b"\xc1"], "no content type")
    assert await waiting[0] is None


def test_a_map_that_fails_says_which_items_in_order_whatever_came_first() -> None:
    loop = asyncio.new_event_loop()
    try:
        gather = Gather(7, loop.create_future(), keeps_failures=False)
        gather.fail(5, [SlotmeshError("UNKNOWN/X: later"), SlotmeshError("UNKNOWN/X: last")])
        gather.put(0, ["a", "b"])
        gather.fail(2, [DecodeError("no number")])
        gather.put(3, ["c", "d"])
        error = gather.future.exception()
        assert isinstance(error, DecodeError)
        assert error.__notes__ == ["3 of 7 items of the map failed: 2, 5, 6 (counted from 0)"]
    finally:
        loop.close()
