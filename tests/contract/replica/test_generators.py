"""Handlers that yield, over real gRPC: values as they come, one list of them, failures, batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.codec import JSON, MSGPACK, decode, encode
from tests.contract.replica.generator_calls import (
    BOTH,
    CREDIT,
    HANDLERS,
    MIB,
    NO,
    SESSION,
    UNKNOWN,
    YES,
    counted,
    failure,
    flowed,
    handler_of,
    has_values,
)
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="200ms") as running:
        yield running


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
        await stream.send(
            stream.run([b"7 %d 7" % (4 * MIB + 1)], method="inflate", streaming=True, max_result_bytes=4 * MIB)
        )
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
