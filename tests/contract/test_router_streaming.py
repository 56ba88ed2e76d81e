"""Handlers that yield, through the router over real gRPC: values as they come, credit, and how such calls end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from router_service.shell.clients.taken_values import TAKE_VALUES
from slotmesh.chunks import CHUNK_BYTES, MAX_INLINE_BYTES
from slotmesh.errors import Executed, Reason
from slotmesh.runtime.duplex import read_frame
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, replica_service_pb2, router_service_pb2
from tests.fakes.replica import FakeReplica, Response, echo, fail, hold, results
from tests.support.router_bench import Call, Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

SESSION = "5e55" * 8
CREDIT_BYTES = 1024 * 1024
"""What a replica lets a handler run ahead."""

Run = replica_service_pb2.RunBatch


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    """A router with one replica that answers nothing by itself."""
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        bench.replicas[0].answer = hold
        yield bench


def values(run: Run, *payloads: bytes, at: int = 0) -> Response:
    """The handler of one call of the run has yielded."""
    ids = [run.first_run_id + at] * len(payloads)
    content_type = run.options.content_type
    batch = call_pb2.ResultBatch(call_ids=ids, payloads=payloads, content_type=content_type, partial=True)
    return Response(results=call_pb2.ResultFrame(batches=[batch]))


async def say_large(replica: FakeReplica, run: Run, payload: bytes) -> None:
    """The handler of the run's only call has yielded a value that travels in chunks."""
    run_id, total = run.first_run_id, len(payload)
    for at in range(0, total, CHUNK_BYTES):
        data = payload[at : at + CHUNK_BYTES]
        await replica.say(Response(chunk=call_pb2.Chunk(call_id=run_id, offset=at, total=total, data=data)))
    batch = call_pb2.ResultBatch(call_ids=[run_id], payloads=[b""], chunked_sizes=[total], partial=True)
    await replica.say(Response(results=call_pb2.ResultFrame(batches=[batch])))


def end(run: Run) -> Response:
    """All calls of the run have ended."""
    ended = call_pb2.IdRange(first=run.first_run_id, last=run.first_run_id + len(run.payloads) - 1)
    return Response(results=call_pb2.ResultFrame(done=[ended]))


def taken(replica: FakeReplica) -> Counter[int]:
    """Values that the replica was told are taken, by run id."""
    counts: Counter[int] = Counter()
    for frame in replica.frames:
        counts.update(dict(zip(frame.take.call_ids, frame.take.counts, strict=True)))
    return counts


class Handler:
    """Yields the same value again and again, as far as the credit goes."""

    def __init__(self, replica: FakeReplica, run: Run, value: bytes, count: int) -> None:
        self.given = 0
        self._replica = replica
        self._run = run
        self._value = value
        self._count = count

    async def run(self) -> None:
        while self.given < self._count:
            await wait_until(self._may_go_on, timeout=20.0, what="values are taken")
            await self._replica.say(values(self._run, self._value))
            self.given += 1
        await self._replica.say(end(self._run))

    def _may_go_on(self) -> bool:
        ahead = self.given - taken(self._replica)[self._run.first_run_id]
        return (ahead + 1) * len(self._value) <= CREDIT_BYTES


def cancelled(replica: FakeReplica) -> list[int]:
    ranges = [each for frame in replica.frames for each in frame.cancel.runs]
    return [run_id for each in ranges for run_id in range(each.first, each.last + 1)]


async def running(replica: FakeReplica, count: int = 1) -> Sequence[Run]:
    """The runs that have come, at least so many."""
    await wait_until(lambda: len(replica.runs) >= count, what="the runs have come")
    return replica.runs


async def read_values(call: Call, count: int) -> list[tuple[int, bytes]]:
    """The next values, and the call of each."""
    read: list[tuple[int, bytes]] = []
    while len(read) < count:
        frame = (await next_frame(call)).results
        assert not frame.errors
        for batch in frame.batches:
            assert batch.partial
            read += zip(batch.call_ids, batch.payloads, strict=True)
    assert len(read) == count
    return read


async def read_end(call: Call) -> list[int]:
    """The calls that the next frame says have ended."""
    frame = (await next_frame(call)).results
    assert not frame.batches
    return [call_id for each in frame.done for call_id in range(each.first, each.last + 1)]


def request(payload: bytes = b"x", **options: Any) -> router_service_pb2.CallStreamingRequest:
    return router_service_pb2.CallStreamingRequest(
        endpoint="echo", payload=payload, options=call_pb2.CallOptions(**options)
    )


async def failure_of(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


class TestStreams:
    @pytest.mark.asyncio
    async def test_values_come_as_they_are_yielded_and_the_call_ends_after_them(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(5, b"x", b"y", streaming=True, content_type="application/json"))
        (run,) = await running(replica)
        assert run.options.streaming
        await replica.say(values(run, b"1", b"2"))
        assert await read_values(call, 2) == [(5, b"1"), (5, b"2")]
        await replica.say(values(run, b"3", at=1))
        assert await read_values(call, 1) == [(6, b"3")]
        await replica.say(end(run))
        assert await read_end(call) == [5, 6]

    @pytest.mark.asyncio
    async def test_a_failure_may_follow_values(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        await replica.say(fail(run))
        assert await read_values(call, 1) == [(1, b"1")]
        _, failed = await outcomes(call, 1)
        assert failed[1].reason == Reason.HANDLER_ERROR

    @pytest.mark.asyncio
    async def test_half_close_waits_for_the_end(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        await call.done_writing()
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert await read_values(call, 1) == [(1, b"1")]
        await replica.say(values(run, b"2"))
        await replica.say(end(run))
        assert await read_values(call, 1) == [(1, b"2")]
        assert await read_end(call) == [1]
        assert await read_frame(call) is None

    @pytest.mark.asyncio
    async def test_taking_a_call_back_stops_its_handler(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        await read_values(call, 1)
        await call.write(Request(cancel=router_service_pb2.CancelCalls(calls=[call_pb2.IdRange(first=1, last=1)])))
        _, failed = await outcomes(call, 1)
        assert (failed[1].reason, failed[1].executed) == (Reason.CANCELLED, Executed.UNKNOWN.value)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_lost_replica_ends_what_it_had_begun_to_say(self, mesh: RouterBench) -> None:
        replica, other = mesh.replicas
        await mesh.linked(replica, other)
        replica.capacity.max_ongoing = other.capacity.max_ongoing = 1
        other.answer = hold
        call = await mesh.open()
        await call.write(calls(1, b"x", b"y", streaming=True, idempotent=True))
        await wait_until(lambda: replica.runs and other.runs)
        (run,) = replica.runs
        await replica.say(values(run, b"1"))
        ((call_id, _),) = await read_values(call, 1)
        replica.break_link()
        _, failed = await outcomes(call, 1)
        assert (failed[call_id].reason, failed[call_id].executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN.value)

    @pytest.mark.asyncio
    async def test_a_session_that_breaks_off_ends_its_streaming_calls_and_no_other(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open(session_id=SESSION, epoch=1)
        await call.write(calls(1, b"x", streaming=True))
        await call.write(calls(2, b"y"))
        (run, other) = await running(replica, 2)
        assert (run.session_id, other.session_id) == (SESSION, SESSION), "starts of both are fenced"
        await replica.say(values(run, b"1"))
        await read_values(call, 1)
        call.cancel()
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])


class TestCredit:
    @pytest.mark.asyncio
    async def test_the_router_takes_what_was_written_for_who_does_not_say_so(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await replica.say(values(run, *[b"v"] * TAKE_VALUES))
        await read_values(call, TAKE_VALUES)
        await wait_until(lambda: taken(replica) == {run.first_run_id: TAKE_VALUES})

    @pytest.mark.asyncio
    async def test_a_client_that_says_so_is_heard_in_the_ids_of_the_replica(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        other = await mesh.open()
        await other.write(calls(1, b"somebody else's"))
        await running(replica, 1)
        call = await mesh.open(features=["take_items"])
        await call.write(calls(70, b"x", streaming=True))
        run = (await running(replica, 2))[1]
        await replica.say(values(run, *[b"v"] * 2 * TAKE_VALUES))
        await read_values(call, 2 * TAKE_VALUES)
        assert not taken(replica)
        take = call_pb2.TakeItems(call_ids=[70, 71, 1, 99], counts=[100, 7, 1, 1])
        await call.write(Request(take=take))
        await wait_until(lambda: taken(replica) == {run.first_run_id: 100})

    @pytest.mark.asyncio
    async def test_a_router_that_translates_says_so(self, mesh: RouterBench) -> None:
        call = mesh.stub.StreamCalls()
        await call.write(Request(open=router_service_pb2.OpenStream(endpoint="echo")))
        assert "take_items" in (await next_frame(call)).opened.features
        call.cancel()

    @pytest.mark.asyncio
    @pytest.mark.parametrize("is_unary", [False, True])
    async def test_who_reads_slowly_holds_up_the_handler_and_nobody_else(
        self, mesh: RouterBench, is_unary: bool
    ) -> None:
        replica = mesh.replicas[0]
        value, count = bytes(64 * 1024), 512
        if is_unary:
            call = mesh.stub.CallStreaming(request())
        else:
            call = await mesh.open()
            await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        handler = Handler(replica, run, value, count)
        running_on = asyncio.ensure_future(handler.run())
        await wait_until(lambda: handler.given * len(value) >= CREDIT_BYTES)
        replica.answer = echo
        busy = await mesh.open()
        for call_id in range(1, 200):  # so many turns would be enough for the handler to run to its end
            await busy.write(calls(call_id, b"meanwhile"))
            assert (await outcomes(busy, 1))[0] == {call_id: b"meanwhile"}
        assert handler.given * len(value) <= 12 * 1024 * 1024, "the credit, and what gRPC has on its way"
        read = 0
        while read < count:
            if is_unary:
                assert (await call.read()).payload == value
                read += 1
            else:
                read += sum(len(batch.payloads) for batch in (await next_frame(call)).results.batches)
        await running_on


class TestManyCalls:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("features", [[], ["take_items"]])
    async def test_one_that_reads_nothing_gets_little_more_than_with_few(
        self, mesh: RouterBench, features: list[str]
    ) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open(features=features)
        await call.write(calls(1, *[b"x"] * 20, streaming=True))
        for call_id in range(21, 101):
            await call.write(calls(call_id, b"x", streaming=True))
        await wait_until(lambda: sum(len(run.payloads) for run in replica.runs) == 100)
        assert sum(len(run.payloads) * (run.bytes_ahead or CREDIT_BYTES) for run in replica.runs) <= 14 * CREDIT_BYTES
        run = next(run for run in replica.runs if run.first_run_id <= 99 < run.first_run_id + len(run.payloads))
        at = 99 - run.first_run_id
        await replica.say(values(run, *[b"v"] * run.values_ahead, at=at))
        await read_values(call, run.values_ahead)
        await wait_until(lambda: taken(replica)[99] >= run.values_ahead // 2, what="the client reads")

    @pytest.mark.asyncio
    async def test_once_they_have_ended_a_call_is_alone_again(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, *[b"x"] * 100, streaming=True))
        (run,) = await running(replica)
        assert run.bytes_ahead < CREDIT_BYTES
        await replica.say(end(run))
        await read_end(call)
        await call.write(calls(101, b"x", streaming=True))
        assert (await running(replica, 2))[1].bytes_ahead == 0


class TestLargeValues:
    @pytest.mark.asyncio
    async def test_they_come_in_chunks_and_in_order(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open(features=["chunks"])
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        large = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"the end"
        await say_large(replica, run, large)
        await replica.say(values(run, b"small"))
        await replica.say(end(run))
        parts = b""
        while (frame := await next_frame(call)).WhichOneof("frame") == "chunk":
            assert (frame.chunk.call_id, frame.chunk.offset) == (1, len(parts))
            parts += frame.chunk.data
        assert parts == large
        announced, *others = frame.results.batches
        assert (list(announced.call_ids), list(announced.chunked_sizes)) == ([1], [len(large)])
        assert announced.partial
        while not others:
            others = list((await next_frame(call)).results.batches)
        assert [(list(each.call_ids), list(each.payloads)) for each in others] == [([1], [b"small"])]

    @pytest.mark.asyncio
    async def test_what_is_too_large_for_its_caller_ends_the_call(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await say_large(replica, run, bytes(MAX_INLINE_BYTES + 1))
        _, failed = await outcomes(call, 1)
        assert (failed[1].reason, failed[1].executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES.value)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])


class TestUnary:
    @pytest.mark.asyncio
    async def test_a_response_for_each_value(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request(content_type="application/json"))
        (run,) = await running(replica)
        assert run.options.streaming
        await replica.say(values(run, b"1", b"2"))
        first, second = await call.read(), await call.read()
        assert [first.payload, second.payload] == [b"1", b"2"]
        assert first.content_type == "application/json"
        await replica.say(values(run, b"3"))
        await replica.say(end(run))
        assert (await call.read()).payload == b"3"
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK

    @pytest.mark.asyncio
    async def test_values_are_taken_as_they_are_written(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, *[b"v"] * TAKE_VALUES))
        await wait_until(lambda: taken(replica) == {run.first_run_id: TAKE_VALUES})
        call.cancel()

    @pytest.mark.asyncio
    async def test_a_failure_follows_the_values_with_its_details(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        await replica.say(fail(run))
        assert (await call.read()).payload == b"1"
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.YES)
        assert failure.metadata["replica_id"] == "r0"

    @pytest.mark.asyncio
    async def test_a_caller_that_leaves_stops_the_handler(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert (await call.read()).payload == b"1"
        call.cancel()
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_value_that_is_too_large_ends_it(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await say_large(replica, run, bytes(CHUNK_BYTES + 1))
        await say_large(replica, run, bytes(MAX_INLINE_BYTES + 1))
        assert len((await call.read()).payload) == CHUNK_BYTES + 1
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_deadline_ends_it_between_values(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request(timeout=duration_pb2.Duration(nanos=200_000_000)))
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert (await call.read()).payload == b"1"
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.DEADLINE_RUNNING, Executed.UNKNOWN)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_replica_that_is_lost_ends_it(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        await running(replica)
        replica.break_link()
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)

    @pytest.mark.asyncio
    async def test_mistakes_are_named(self, mesh: RouterBench) -> None:
        for wrong, field in (
            (request(no_reply=True), "options.no_reply"),
            (request(content_type="text/html"), "options.content_type"),
            (router_service_pb2.CallStreamingRequest(), "endpoint"),
        ):
            failure = await failure_of(mesh.stub.CallStreaming(wrong).read())
            assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, field)
        failure = await failure_of(mesh.stub.CallStreaming(request(bytes(MAX_INLINE_BYTES + 1))).read())
        assert failure.reason is Reason.PAYLOAD_TOO_LARGE
        assert not mesh.replicas[0].runs

    @pytest.mark.asyncio
    async def test_a_router_that_stops_waits_for_it(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert (await call.read()).payload == b"1"
        stopping = asyncio.ensure_future(mesh.stop())
        await replica.say(values(run, b"2"))
        await replica.say(end(run))
        assert (await call.read()).payload == b"2"
        assert await call.read() is grpc.aio.EOF
        await stopping

    @pytest.mark.asyncio
    async def test_a_call_for_one_result_gets_one(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        replica.answer = lambda run: results(run, [b"[1,2,3]"])
        response = await mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo", payload=b"x"))
        assert response.payload == b"[1,2,3]"
        assert not replica.runs[0].options.streaming
        options = call_pb2.CallOptions(streaming=True)
        wrong = router_service_pb2.CallRequest(endpoint="echo", options=options)
        failure = await failure_of(mesh.stub.Call(wrong))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "options.streaming")
