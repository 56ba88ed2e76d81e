"""Calls with a request id over real gRPC: a replica executes each once, and answers repetitions on any link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.calls.request_ids import KEEP_S
from slotmesh.internal.v1 import replica_service_pb2
from tests.support.execute_stream import ExecuteStream
from tests.support.fakes.clock import FakeClock
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO, UNKNOWN, YES = 1, 2, 3
Run = replica_service_pb2.RunBatch


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(graceful_timeout="200ms") as running:
        yield running


def named(
    stream: ExecuteStream, payload: bytes = b"x", *, request_id: str = "a", digest: bytes = b"", **fields: Any
) -> Run:
    identity = replica_service_pb2.RequestIdentity(id=request_id, digest=digest or payload)
    run = stream.run([payload], request=identity, **fields)
    run.owner_epoch = 1
    return run


async def heard(stream: ExecuteStream) -> None:
    """Returns when the replica has read all that was sent before."""
    await stream.reconcile("5e" * 16, 1, (1, 1))


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_a_repetition_waits_for_the_call_that_runs(replica: RunningReplica, method: str) -> None:
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(named(first, method=method))
        await wait_until(lambda: replica.handler.started)
        await second.send(named(second, method=method))
        await first.send(named(first, method=method))
        await heard(second)
        await heard(first)
        replica.handler.open_all()
        await first.wait_answers(2)
        await second.wait_answers(1)
        assert (first.results, second.results) == ({1: b"x", 2: b"x"}, {1: b"x"})
        assert replica.handler.started == [b"x"]


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_a_call_that_has_started_continues_without_its_caller(replica: RunningReplica, method: str) -> None:
    async with replica.router() as other:
        async with replica.router("router-2") as first:
            await first.send(named(first, method=method))
            await wait_until(lambda: replica.handler.started)
            await first.cancel((1, 1))
            await heard(first)
        await other.send(named(other, method=method))
        await heard(other)
        replica.handler.open_all()
        await other.wait_answers(1)
        assert other.results == {1: b"x"}
        assert replica.handler.started == [b"x"]


async def test_a_repetition_that_leaves_ends_nothing(replica: RunningReplica) -> None:
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(named(first, method="wait"))
        await wait_until(lambda: replica.handler.started)
        await second.send(named(second, method="wait"))
        await second.cancel((1, 1))
        await second.wait_answers(1)
        assert (second.failures[1].reason, second.failures[1].executed) == ("CANCELLED", UNKNOWN)
        replica.handler.open_all()
        await first.wait_answers(1)
        assert first.results == {1: b"x"}


async def test_repetitions_of_a_call_that_is_handed_back_are_handed_back(replica: RunningReplica) -> None:
    replica.engine.configure(max_ongoing=1, prefetch=0)
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(first.run([b"before"], method="wait"))
        await wait_until(lambda: replica.handler.started)
        await first.send(named(first))
        await heard(first)
        await second.send(named(second))
        await heard(second)
        replica.engine.fence(1)
        await first.wait_answers(1)
        await second.wait_answers(1)
        assert first.refused[2].reason == second.refused[1].reason == "STALE_TABLE"


async def test_repetitions_of_a_call_that_is_withdrawn_are_handed_back(replica: RunningReplica) -> None:
    replica.engine.configure(max_ongoing=1, prefetch=0)
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(first.run([b"before"], method="wait"))
        await wait_until(lambda: replica.handler.started)
        await first.send(named(first))
        await heard(first)
        await second.send(named(second))
        await heard(second)
        await first.cancel((2, 2))
        await second.wait_answers(1)
        assert (second.refused[1].reason, second.refused[1].executed) == ("BACKEND_UNAVAILABLE", NO)
        replica.handler.open_all()
        await second.send(named(second))
        await second.wait_answers(2)
        assert second.results == {2: b"x"}


async def test_failures_of_executed_calls_are_repeated_and_others_are_not(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        for run in (named(stream, method="fail"), named(stream, method="fail")):
            await stream.send(run)
        await stream.wait_answers(2)
        assert stream.failures[1] == stream.failures[2]
        assert (stream.failures[2].reason, stream.failures[2].executed) == ("HANDLER_ERROR", YES)
        await stream.send(named(stream, method="nothing", request_id="b"))
        await stream.wait_answers(3)
        assert stream.failures[3].executed == NO
        await stream.send(named(stream, request_id="b"))
        await stream.wait_answers(4)
        assert stream.results == {4: b"x"}


async def test_an_id_of_another_call_is_refused(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(named(stream), named(stream, b"y"), named(stream, b"y", endpoint="other"))
        await stream.wait_answers(3)
        assert stream.results == {1: b"x", 3: b"y"}
        failure = stream.failures[2]
        assert (failure.reason, failure.executed, failure.metadata["field"]) == ("BAD_REQUEST", NO, "request_id")


async def test_values_are_repeated_as_values(replica: RunningReplica) -> None:
    fields: dict[str, Any] = {"content_type": "application/json", "streaming": True, "method": "stream"}
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(named(first, b"[3]", **fields), named(first, b"[257]", request_id="long", **fields))
        await wait_until(lambda: len(first.values.get(2, ())) == 256)
        await second.send(named(second, b"[3]", **fields), named(second, b"[257]", request_id="long", **fields))
        await heard(second)
        await first.take_values(r2=256)
        await wait_until(lambda: first.done == {1, 2} and second.done == {1} and second.failures)
        assert first.values[1] == second.values[1] == [b"0", b"1", b"2"]
        assert len(first.values[2]) == 257
        assert (second.failures[2].reason, second.failures[2].executed) == ("RESULT_EVICTED", YES)


async def test_the_partition_is_checked_as_that_of_an_ordering_key(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(named(stream, partition=7))
        await stream.wait_answers(1)
        replica.engine.fence(1)
        await stream.send(named(stream, partition=7), named(stream, partition=7, request_id="new"))
        await stream.wait_answers(3)
        assert stream.results == {1: b"x", 2: b"x"}, "it is answered from memory"
        assert stream.refused[3].reason == "STALE_TABLE"


async def test_a_replica_that_is_not_the_owner_looks_the_id_up(
    replica: RunningReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its methods and its memory matter to calls that it would execute."""
    async with replica.router() as stream:
        await stream.send(named(stream), named(stream, method="wait", request_id="runs"))
        await wait_until(lambda: replica.handler.started)
        asked = [
            named(stream, b"y", request_id="new"),
            named(stream, b"y", request_id="other", method="unknown_here"),
            named(stream),
            named(stream, b"y"),
            named(stream, method="wait", request_id="runs"),
        ]
        for run in asked:
            run.owner_epoch = -1
        monkeypatch.setattr(replica.engine.repetitions._calls, "_max_calls", 2)
        await stream.send(*asked)
        await wait_until(lambda: len(stream.refused) == 2 and stream.failures)
        assert {run_id: each.reason for run_id, each in stream.refused.items()} == {3: "STALE_TABLE", 4: "STALE_TABLE"}
        replica.handler.open_all()
        await wait_until(lambda: len(stream.results) == 4)
        assert stream.results == {1: b"x", 2: b"x", 5: b"x", 7: b"x"}
        assert stream.failures[6].reason == "BAD_REQUEST"
        assert replica.handler.started == [b"x"]


@pytest.mark.parametrize("key", ["victim", "\0victim"])
async def test_no_ordering_key_is_the_lane_of_an_id(replica: RunningReplica, key: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"blocking"], method="wait", key=key))
        await wait_until(lambda: replica.handler.started)
        await stream.send(named(stream, request_id="victim"))
        await stream.wait_answers(1)
        assert stream.results == {2: b"x"}
        replica.handler.open_all()


async def test_an_id_belongs_to_one_call_without_a_session(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        run = named(stream)
        run.payloads.append(b"y")
        await stream.send(run)
        await stream.wait_answers(2)
        assert {each.reason for each in stream.failures.values()} == {"BAD_REQUEST"}


async def test_outcomes_are_kept_for_a_minute() -> None:
    clock = FakeClock()
    async with running_replica(clock=clock) as replica, replica.router() as stream:
        replica.handler.open_all()
        for count, (seconds, executed) in enumerate(((0, 1), (KEEP_S - 0.5, 1), (1, 2)), 1):
            clock.advance(seconds)
            await stream.send(named(stream, method="wait"))
            await stream.wait_answers(count)
            assert len(replica.handler.started) == executed
        assert stream.results == {1: b"x", 2: b"x", 3: b"x"}
