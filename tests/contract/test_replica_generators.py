"""Handlers that yield, over real gRPC: values as they come, one list of them, and every way in which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.codec import JSON, MSGPACK, decode, encode
from slotmesh.errors import Reason
from slotmesh.v1 import call_pb2
from tests.contract.yielding_handlers import Handler
from tests.support.execute_stream import ExecuteStream, Request
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLERS = "tests.contract.yielding_handlers"
NO, UNKNOWN, YES = 1, 2, 3
SESSION = "9e4" * 10 + "00"
BOTH = pytest.mark.parametrize("method", ["count", "count_in_thread"])
CREDIT = 256
MIB = 1024 * 1024


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="200ms") as running:
        yield running


def handler_of(replica: RunningReplica) -> Handler:
    handler = replica.handler
    assert isinstance(handler, Handler)
    return handler


def counted(*range_: int) -> list[bytes]:
    return [b"%d" % number for number in range(*range_)]


def failure(stream: ExecuteStream, run_id: int) -> tuple[str, int]:
    found = stream.failures[run_id]
    return found.reason, found.executed


async def has_values(stream: ExecuteStream, run_id: int, count: int) -> None:
    await wait_until(lambda: len(stream.values.get(run_id, ())) >= count, what=f"{count} values of {run_id}")


async def flowed(stream: ExecuteStream) -> None:
    """What the replica had to say has come: a question is answered behind it."""
    await stream.reconcile("0" * 32, 1)


# -- values --------------------------------------------------------------------------------------------------------


@BOTH
async def test_each_value_comes_and_then_the_end(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"3", b"0", b"2"], method=method, streaming=True))
        await stream.wait_answers(3)
        assert stream.values == {1: counted(3), 3: counted(2)}
        assert stream.done == {1, 2, 3}
        assert sorted(handler_of(replica).closed) == [b"0", b"2", b"3"]


@pytest.mark.parametrize("method", ["numbers", "numbers_in_thread"])
@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
async def test_values_are_encoded_as_they_are_when_they_are_yielded(
    replica: RunningReplica, method: str, content_type: str
) -> None:
    async with replica.router() as stream:
        arguments = encode(content_type, [3, "growing"])
        for streaming in (True, False):
            await stream.send(stream.run([arguments], method=method, content_type=content_type, streaming=streaming))
        await stream.wait_answers(2)
        growing = [[0], [0, 1], [0, 1, 2]]
        assert [decode(content_type, value) for value in stream.values[1]] == growing
        assert decode(content_type, stream.results[2]) == growing


@pytest.mark.parametrize("method", ["numbers", "numbers_in_thread"])
@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
async def test_without_streaming_the_values_are_one_list(
    replica: RunningReplica, method: str, content_type: str, count: int
) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([encode(content_type, [count])], method=method, content_type=content_type))
        await stream.wait_answers(1)
        assert stream.results[1] == encode(content_type, [*range(count)])


@BOTH
@pytest.mark.parametrize("key", ["", "k"])
async def test_bytes_are_no_list(replica: RunningReplica, method: str, key: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"1", b"2"], method=method, key=key))
        await stream.wait_answers(2)
        assert failure(stream, 1) == failure(stream, 2) == ("BAD_REQUEST", NO)
        assert "takes streaming or another content type" in stream.failures[1].message
        await stream.send(stream.run([b"3"], method=method, key=key, streaming=True))
        await stream.wait_answers(3)
        assert handler_of(replica).begun == [b"3"]


@BOTH
async def test_calls_that_nobody_waits_for_run_to_their_end(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        for streaming in (True, False):
            await stream.send(stream.run([b"1000"], method=method, no_reply=True, streaming=streaming))
        await stream.wait_answers(2)
        assert (stream.done, stream.values, stream.results) == ({1, 2}, {}, {})
        assert handler_of(replica).stepped == {b"1000": 1000}


@pytest.mark.parametrize("method", ["plain", "plain_in_thread"])
@pytest.mark.parametrize("session", [{}, {"session_id": SESSION, "call_ids": [1]}])
async def test_a_method_that_does_not_yield_has_one_value(
    replica: RunningReplica, method: str, session: dict[str, Any]
) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a", b"b"], method=method, streaming=True, **session))
        await stream.wait_answers(2)
        assert (stream.values, stream.done) == ({1: [b"a"], 2: [b"b"]}, {1, 2})


async def test_values_that_are_ready_at_once_travel_in_one_frame(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"100"], method="count", streaming=True))
        await stream.wait_answers(1)
        assert stream.value_frames == [[1] * 100]


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_a_value_does_not_wait_for_the_next_one(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a"], method=method, streaming=True))
        await has_values(stream, 1, 1)
        handler_of(replica).open_all()
        await stream.wait_answers(1)
        assert stream.values[1] == [b"a", b"open"]


@pytest.mark.parametrize("method", ["context", "context_in_thread"])
async def test_context_variables_are_those_of_the_call(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        for name in "ab":
            run = stream.run(
                [encode(JSON, [3])] * 2, method=method, content_type=JSON, streaming=True, metadata={"name": name}
            )
            await stream.send(run)
        await stream.send(stream.run([encode(JSON, [1])], method=method, content_type=JSON, key="k", streaming=True))
        await stream.wait_answers(5)
        for run_id, name in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
            seen = [decode(JSON, value) for value in stream.values[run_id]]
            assert seen == [f"{step} { ({'name': name}) }" for step in (1, 2, 3)]
        assert decode(JSON, stream.values[5][0]) == "1 {}"


# -- how far ahead ---------------------------------------------------------------------------------------------------


@BOTH
async def test_a_handler_waits_for_who_takes_its_values(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        stepped = handler_of(replica).stepped
        await stream.send(stream.run([b"1000"], method=method, streaming=True))
        await has_values(stream, 1, CREDIT)
        await flowed(stream)
        assert stepped[b"1000"] == len(stream.values[1]) == CREDIT
        await stream.take_values(r1=10, r99=1000)
        await has_values(stream, 1, CREDIT + 10)
        await flowed(stream)
        assert stepped[b"1000"] == len(stream.values[1]) == CREDIT + 10
        for _ in range(4):
            await stream.take_values(r1=CREDIT)
            await has_values(stream, 1, min(len(stream.values[1]) + CREDIT, 1000))
        await stream.wait_answers(1)
        assert stream.values[1] == counted(1000)


async def test_nobody_takes_more_than_there_is(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"1000"], method="count", streaming=True))
        await has_values(stream, 1, CREDIT)
        await stream.take_values(r1=10_000)
        await stream.take_values(r1=-5)
        await has_values(stream, 1, 2 * CREDIT)
        await flowed(stream)
        assert len(stream.values[1]) == 2 * CREDIT


async def test_large_values_fill_the_credit_sooner(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        sizes = b"%d 400000 400000 5 400000 1 1" % (3 * MIB)
        await stream.send(stream.run([sizes], method="inflate", streaming=True))
        await has_values(stream, 1, 1)
        await flowed(stream)
        assert handler_of(replica).stepped[sizes] == 1, "one value is always allowed"
        await stream.take_values(r1=1)
        await has_values(stream, 1, 5)
        await flowed(stream)
        assert handler_of(replica).stepped[sizes] == 5
        await stream.take_values(r1=2)
        await stream.wait_answers(1)
        assert list(map(len, stream.values[1])) == list(map(int, sizes.split()))


@pytest.mark.parametrize("features", [(), ("chunks",)])
async def test_values_and_the_end_stay_behind_large_values(replica: RunningReplica, features: tuple[str, ...]) -> None:
    async with replica.router(features=features) as stream:
        sizes = b"3 300000 4 300001 300002 5"
        await stream.send(
            stream.run([sizes], method="inflate", streaming=True), stream.run([b"9"], method="count", streaming=True)
        )
        await stream.wait_answers(2)
        assert [(value[0], len(value)) for value in stream.values[1]] == [*enumerate(map(int, sizes.split()))]
        assert stream.values[2] == counted(9)
        assert ("chunk" in stream.frames) == bool(features)
        if features:
            assert stream.answer_order == [2, 1], "small values pass those of other calls"


@BOTH
async def test_more_calls_are_paused_than_there_are_threads(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"300 %d" % index for index in range(4)], method=method, streaming=True))
        for run_id in range(1, 5):
            await has_values(stream, run_id, CREDIT)
        await flowed(stream)
        assert stream.answered == 0
        assert replica.engine.scheduler.in_use == 4, "a paused call holds its slot"
        await stream.send(stream.run([b"late"], method="plain_in_thread"))
        await wait_until(lambda: stream.refused, what="no room for more")
        await stream.take_values(r2=100)
        await wait_until(lambda: stream.done == {2}, what="the one that was taken from")
        await stream.send(stream.run([b"now"], method="plain_in_thread"))
        await wait_until(lambda: stream.results, what="a thread, though three calls are paused")


async def test_when_the_router_says_no_more_values_are_taken_as_they_leave(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"2000", b"3000"], method="count", streaming=True))
        await has_values(stream, 2, CREDIT)
        await stream.call.done_writing()
        await stream.wait_answers(2)
        assert (stream.values[1], stream.values[2]) == (counted(2000), counted(3000))
        await wait_until(lambda: stream.ended, what="the end")
        assert stream.error is None


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["numbers", "numbers_in_thread"])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("then", "message"), [("fail", "ValueError: no more"), ("object", "cannot be sent")])
async def test_a_call_that_fails_late_has_the_values_before(
    replica: RunningReplica, method: str, streaming: bool, then: str, message: str
) -> None:
    async with replica.router() as stream:
        arguments = encode(MSGPACK, [200, then])
        await stream.send(stream.run([arguments], method=method, content_type=MSGPACK, streaming=streaming))
        await stream.wait_answers(1)
        assert failure(stream, 1) == ("HANDLER_ERROR", YES)
        assert message in stream.failures[1].message
        assert len(stream.values.get(1, ())) == (200 if streaming else 0)
        assert handler_of(replica).closed == [b"numbers"]


async def test_a_value_that_is_too_large_fails_its_call(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"7 %d 7" % (4 * MIB + 1)], method="inflate", streaming=True))
        await stream.wait_answers(1)
        assert failure(stream, 1) == ("PAYLOAD_TOO_LARGE", YES)
        assert list(map(len, stream.values[1])) == [7]
        assert len(handler_of(replica).closed) == 1


async def test_a_list_that_is_too_large_stops_growing(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        run = stream.run([encode(MSGPACK, [b"x" * 100_000])], method="endless", content_type=MSGPACK)
        await stream.send(run)
        await stream.wait_answers(1)
        assert failure(stream, 1) == ("PAYLOAD_TOO_LARGE", YES)
        assert len(handler_of(replica).closed) == 1


async def test_bad_arguments_do_not_begin(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        for method in ("numbers", "numbers_in_thread"):
            run = stream.run([encode(JSON, ["x"])], method=method, content_type=JSON, streaming=True)
            await stream.send(run)
        await stream.wait_answers(2)
        assert failure(stream, 1) == failure(stream, 2) == ("BAD_ARGUMENTS", NO)
        assert handler_of(replica).begun == []


# -- cancelled -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["count", "count_in_thread", "wait", "endless", "endless_in_thread"])
async def test_a_call_that_is_taken_back_is_closed(replica: RunningReplica, method: str) -> None:
    """Paused, or waiting."""
    arguments = b"1000" if method.startswith("count") else b"x"
    async with replica.router() as stream:
        await stream.send(stream.run([arguments], method=method, streaming=True))
        await wait_until(lambda: handler_of(replica).begun, what="it runs")
        await stream.cancel((1, 1))
        await stream.wait_answers(1)
        assert failure(stream, 1) == ("CANCELLED", UNKNOWN)
        assert handler_of(replica).closed == [arguments]
        await stream.cancel((1, 1))
        await stream.send(stream.run([b"next"], method="plain"))
        await stream.wait_answers(2)
        assert replica.engine.scheduler.is_idle


@pytest.mark.parametrize("method", ["endless", "endless_in_thread"])
async def test_one_that_never_pauses_is_closed_too(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"x"], method=method, no_reply=True))
        await wait_until(lambda: handler_of(replica).begun, what="it runs")
        await stream.cancel((1, 1))
        await stream.wait_answers(1)
        assert stream.done == {1}
        assert handler_of(replica).closed == [b"x"]
        assert replica.engine.counters.failures == {Reason.CANCELLED: 1}


async def test_one_that_waits_in_a_thread_is_closed_when_it_yields(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a"], method="wait_in_thread", streaming=True))
        await has_values(stream, 1, 1)
        await stream.cancel((1, 1))
        await flowed(stream)
        assert stream.answered == 0
        handler_of(replica).open_all()
        await stream.wait_answers(1)
        assert failure(stream, 1) == ("CANCELLED", UNKNOWN)


@pytest.mark.parametrize("method", ["count", "count_in_thread", "wait", "endless"])
async def test_a_call_that_is_overdue_is_closed(replica: RunningReplica, method: str) -> None:
    arguments = b"1000" if method.startswith("count") else b"x"
    async with replica.router() as stream:
        await stream.send(stream.run([arguments], method=method, streaming=True, time_left_s=0.05))
        await stream.wait_answers(1)
        assert failure(stream, 1) == ("DEADLINE_RUNNING", UNKNOWN)
        assert handler_of(replica).closed == [arguments]


async def test_a_timeout_of_the_handler_ends_what_is_paused(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"x"], method="in_time", streaming=True))
        await has_values(stream, 1, CREDIT)
        await stream.wait_answers(0)
        await wait_until(lambda: len(stream.values[1]) == CREDIT + 1, what="the value after its timeout")
        assert stream.values[1][-1] == b"timeout"
        await stream.take_values(r1=CREDIT)
        await stream.wait_answers(1)
        assert stream.done == {1}


@pytest.mark.parametrize("method", ["count", "count_in_thread", "wait"])
@pytest.mark.parametrize("session", [{}, {"session_id": SESSION, "call_ids": [1]}])
async def test_the_end_of_the_link_closes_what_it_was_for(
    replica: RunningReplica, method: str, session: dict[str, Any]
) -> None:
    arguments = b"1000" if method.startswith("count") else b"x"
    async with replica.router() as stream:
        await stream.send(stream.run([arguments], method=method, streaming=True, **session))
        await wait_until(lambda: stream.values.get(1), what="it runs")
    await wait_until(lambda: replica.engine.scheduler.is_idle, what="it is closed")
    assert handler_of(replica).closed == [arguments]


# -- sessions --------------------------------------------------------------------------------------------------------


@BOTH
async def test_nothing_is_kept_of_calls_with_several_results(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run([b"3", b"x"], method=method, streaming=True, session_id=SESSION, call_ids=[1]),
            stream.run([b"x"], method="plain", session_id=SESSION, call_ids=[3]),
        )
        await stream.wait_answers(3)
        assert (stream.done, stream.values) == ({1}, {1: counted(3)})
        assert failure(stream, 2) == ("HANDLER_ERROR", YES)
        answer = await stream.reconcile(SESSION, 2, (1, 3))
        known = [(calls.first, calls.last) for each in (*answer.kept, *answer.joined) for calls in each.calls]
        assert known == [(3, 3)]


async def test_a_call_that_is_sent_again_runs_again(replica: RunningReplica) -> None:
    """It does not join the first attempt, whose values went elsewhere."""
    async with replica.router() as first, replica.router("router-2") as second:
        fields: dict[str, Any] = {"method": "count", "streaming": True, "session_id": SESSION, "call_ids": [1]}
        await first.send(first.run([b"300"], **fields))
        await has_values(first, 1, CREDIT)
        await second.send(second.run([b"300"], attempt=1, **fields))
        await has_values(second, 1, CREDIT)
        await first.cancel((1, 1))
        await first.wait_answers(1)
        await second.take_values(r1=100)
        await second.wait_answers(1)
        assert second.values[1] == counted(300)
        assert failure(first, 1) == ("CANCELLED", UNKNOWN)


async def test_an_older_connection_starts_none(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        fields: dict[str, Any] = {"method": "count", "streaming": True, "session_id": SESSION}
        await stream.send(stream.run([b"1000"], key="k", call_ids=[1], **fields))
        await stream.send(stream.run([b"2"], key="k", call_ids=[2], **fields))
        await has_values(stream, 1, 1)
        await stream.reconcile(SESSION, 2)
        await stream.send(stream.run([b"3"], call_ids=[3], **fields))
        await stream.wait_answers(2)
        assert {run_id: each.reason for run_id, each in stream.refused.items()} == dict.fromkeys(
            (2, 3), "SESSION_FENCED"
        )
        await stream.cancel((1, 1))
        await stream.wait_answers(3)
        assert failure(stream, 1) == ("CANCELLED", UNKNOWN)
        assert handler_of(replica).begun == [b"1000"]


async def test_the_list_of_a_session_is_kept(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        run = stream.run([encode(JSON, [3])], method="numbers", content_type=JSON, session_id=SESSION, call_ids=[5])
        await stream.send(run)
        await stream.wait_answers(1)
    async with replica.router("router-2") as stream:
        await stream.reconcile(SESSION, 2, (5, 5))
        run = stream.run([b""], method="", session_id=SESSION, session_epoch=2, call_ids=[5], recover=True)
        await stream.send(run)
        await stream.wait_answers(1)
        assert stream.results[1] == b"[0,1,2]"


# -- lanes -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("is_one_run", [True, False])
async def test_a_lane_waits_for_the_end_of_each_call(replica: RunningReplica, method: str, is_one_run: bool) -> None:
    async with replica.router() as stream:
        payloads = [b"300 a", b"2 b", b"2 c"]
        runs = [payloads] if is_one_run else [[payload] for payload in payloads]
        await stream.send(*(stream.run(run, method=method, key="k", streaming=True) for run in runs))
        await stream.send(stream.run([b"1 d"], method=method, key="other", streaming=True))
        await wait_until(lambda: stream.done == {4}, what="another lane")
        await has_values(stream, 1, CREDIT)
        await stream.cancel((2, 2))
        await flowed(stream)
        assert handler_of(replica).begun.count(b"2 b") == 0
        await stream.take_values(r1=CREDIT)
        await stream.wait_answers(4)
        assert stream.done == {1, 3, 4}
        assert failure(stream, 2) == ("CANCELLED", NO)
        assert [call for call in handler_of(replica).begun if call != b"1 d"] == [b"300 a", b"2 c"]


@BOTH
async def test_a_lane_that_stops_does_not_go_on_after_a_failure(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run(
                [b"2 a", b"bad", b"2 c"],
                method=method,
                key="k",
                stop=1,
                streaming=True,
                session_id=SESSION,
                call_ids=[1],
            )
        )
        await stream.wait_answers(3)
        assert stream.done == {1}
        assert failure(stream, 2) == ("HANDLER_ERROR", YES)
        assert failure(stream, 3) == ("PREDECESSOR_FAILED", NO)


# -- batches ---------------------------------------------------------------------------------------------------------


async def test_each_list_has_a_value_for_each_call_of_the_batch(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        arguments = [encode(JSON, [value]) for value in ("a", "b")]
        streamed = stream.run(arguments, method="pair_in_thread", content_type=JSON, streaming=True)
        listed = stream.run([encode(JSON, [3])], method="pair_in_thread", content_type=JSON)
        await stream.send(streamed, listed)
        await stream.wait_answers(3)
        assert stream.values == {1: [b'"a"', b'"a"'], 2: [b'"b"', b'"b"']}
        assert (stream.done, stream.results) == ({1, 2}, {3: b"[3,3]"})
        assert handler_of(replica).begun == [b"pair"]


async def test_a_batch_goes_as_far_as_its_slowest_caller(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a", b"b", b"c"], method="count_together", streaming=True))
        await has_values(stream, 3, CREDIT)
        await stream.take_values(r1=CREDIT, r2=5)
        await flowed(stream)
        assert handler_of(replica).stepped == {b"a b c": CREDIT}
        await stream.take_values(r3=10)
        await has_values(stream, 3, CREDIT + 5)
        await flowed(stream)
        assert handler_of(replica).stepped == {b"a b c": CREDIT + 5}
        await stream.cancel((2, 2))
        await has_values(stream, 3, CREDIT + 10)
        assert failure(stream, 2) == ("CANCELLED", UNKNOWN)
        assert len(stream.values[2]) == CREDIT + 5
        await flowed(stream)
        assert handler_of(replica).closed == []
        await stream.cancel((1, 3))
        await stream.wait_answers(3)
        assert handler_of(replica).closed == [b"a b c"]
        assert replica.engine.scheduler.is_idle


@pytest.mark.parametrize("method", ["pair_in_thread"])
async def test_calls_of_a_batch_fail_alone_or_together(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        for kind in ("object", "short"):
            await stream.send(
                stream.run(
                    [encode(JSON, [kind]), encode(JSON, ["x"])], method=method, content_type=JSON, streaming=True
                ),
                stream.run([b"bytes"], method=method),
            )
            await wait_until(lambda: stream.answered % 3 == 0 and stream.answered, what="the batch")
        await stream.wait_answers(6)
        assert failure(stream, 1) == ("HANDLER_ERROR", YES)
        assert stream.values[2] == [b'"x"'] * 4
        assert failure(stream, 3) == failure(stream, 6) == ("BAD_REQUEST", NO)
        assert failure(stream, 4) == failure(stream, 5) == ("BATCH_SIZE_MISMATCH", YES)
        assert handler_of(replica).closed == [b"pair", b"pair"]


# -- the replica -----------------------------------------------------------------------------------------------------


async def test_a_replica_that_drains_waits_for_what_yields() -> None:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="10s") as replica, replica.router() as stream:
        await stream.send(stream.run([b"600"], method="count", streaming=True))
        await has_values(stream, 1, CREDIT)
        stopping = asyncio.ensure_future(replica.stop())
        await wait_until(lambda: stream.go_away, what="it drains")
        await flowed(stream)
        assert not stopping.done()
        await stream.take_values(r1=CREDIT)
        await has_values(stream, 1, 2 * CREDIT)
        await stream.take_values(r1=CREDIT)
        await stream.wait_answers(1)
        assert await stopping == 0
        assert stream.values[1] == counted(600)


async def test_nothing_begins_on_a_link_that_is_not_fresh(replica: RunningReplica) -> None:
    async with replica.router(features=["heartbeats"]) as stream:
        stream.echoes = False
        (link,) = replica.engine._links
        link.fresh_until = 0.0
        await stream.send(stream.run([b"2"], method="count", streaming=True))
        await flowed(stream)
        assert stream.answered == 0
        stream.echoes = True
        await stream.wait_answers(1)
        assert stream.values[1] == counted(2)


async def test_a_frame_with_uneven_columns_takes_what_it_says(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"300"], method="count", streaming=True))
        await has_values(stream, 1, CREDIT)
        take = call_pb2.TakeItems(call_ids=[1, 2], counts=[100])
        await stream.call.write(Request(take=take))
        await stream.wait_answers(1)
        assert stream.done == {1}
