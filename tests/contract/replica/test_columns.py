"""Batches with a column of ordering keys, over real gRPC: as one batch for each call would be, in the same order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import replica_service_pb2
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO, UNKNOWN, YES = 1, 2, 3
SESSION = "c01" * 10 + "00"


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(graceful_timeout="200ms") as running:
        yield running


def column(
    stream: ExecuteStream, keys: Sequence[str], *, partitions: Sequence[int] = (), epoch: int = 1, **fields: Any
) -> replica_service_pb2.RunBatch:
    """A call for each key; what it carries says which one it is."""
    payloads = fields.pop("payloads", [f"{index}:{key}".encode() for index, key in enumerate(keys)])
    return stream.run(
        payloads,
        ordering_keys=keys,
        partitions=partitions or [len(key) for key in keys],
        owner_epochs=[epoch if key else 0 for key in keys],
        **fields,
    )


@pytest.mark.parametrize("session", [{}, {"session_id": SESSION, "call_ids": [1]}])
@pytest.mark.parametrize("method", ["echo", "thread"])
async def test_each_call_has_its_result(replica: RunningReplica, method: str, session: dict[str, Any]) -> None:
    keys = [f"key-{index % 150}" for index in range(200)]
    async with replica.router() as stream:
        run = column(stream, keys, method=method, **session)
        await stream.send(run, stream.run([b"behind"]))
        await stream.wait_answers(201)
        assert [stream.results[run_id] for run_id in range(1, 202)] == [*run.payloads, b"behind"]


async def test_calls_of_one_key_run_one_after_another_and_those_of_others_do_not_wait(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(column(stream, ["a", "b", "a", "", "a"], method="wait"))
        await wait_until(lambda: len(replica.handler.started) == 3)
        assert sorted(replica.handler.started) == [b"0:a", b"1:b", b"3:"]
        await stream.send(stream.run([b"x"], method="open"))
        await stream.wait_answers(6)
        assert [payload for payload in replica.handler.started if payload.endswith(b"a")] == [b"0:a", b"2:a", b"4:a"]


async def test_the_key_of_the_options_does_not_count(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(column(stream, ["a", "b"], method="wait", key="one"))
        await wait_until(lambda: len(replica.handler.started) == 2)


async def test_a_column_waits_behind_earlier_batches_of_its_keys(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"before"], method="wait", key="a"))
        await stream.send(column(stream, ["b", "a"], method="wait"), stream.run([b"after"], method="wait", key="b"))
        await wait_until(lambda: len(replica.handler.started) == 2)
        assert sorted(replica.handler.started) == [b"0:b", b"before"]
        replica.handler.open_all()
        await stream.wait_answers(4)
        assert replica.handler.started.index(b"0:b") < replica.handler.started.index(b"after")


async def test_batch_methods_gather_calls_of_many_keys(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(column(stream, ["a", "b", "a", "c", "d"], method="upper"))
        await stream.wait_answers(5)
        assert stream.results == {1: b"0:A", 2: b"1:B", 3: b"2:A", 4: b"3:C", 5: b"4:D"}


async def test_one_call_that_fails_is_that_one(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(column(stream, ["a", "b", "c"], method="fail"))
        await stream.wait_answers(3)
        assert [stream.failures[run_id].message for run_id in (1, 2, 3)] == [
            "ValueError: 0:a",
            "ValueError: 1:b",
            "ValueError: 2:c",
        ]


async def test_single_calls_are_taken_back(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(column(stream, ["a", "b", "a", "a", "b"], method="wait"))
        await wait_until(lambda: len(replica.handler.started) == 2)
        await stream.cancel((3, 3), (5, 9))
        await stream.wait_answers(2)
        assert {(stream.failures[run_id].reason, stream.failures[run_id].executed) for run_id in (3, 5)} == {
            ("CANCELLED", NO)
        }
        await stream.cancel((2, 2))
        await stream.wait_answers(3)
        assert (stream.failures[2].reason, stream.failures[2].executed) == ("CANCELLED", UNKNOWN)
        replica.handler.open_all()
        await stream.wait_answers(5)
        assert stream.results == {1: b"0:a", 4: b"3:a"}


async def test_a_call_of_a_partition_that_is_gone_is_refused_and_no_other(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        assert [gone async for gone in replica.engine.revoke({"e": {2: 1}})] == [{"e": {2: 1}}]
        await stream.send(column(stream, ["a", "bb", "a"]))
        await stream.wait_answers(3)
        assert stream.results == {1: b"0:a", 3: b"2:a"}
        assert stream.refused[2].reason == "STALE_TABLE"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"partitions": [1]}, "partitions"),
        ({"partitions": [1, 4096]}, "partitions"),
        ({"payloads": [b"x"] * 3}, "ordering_keys"),
    ],
)
async def test_columns_that_are_not_parallel_fail_their_batch(
    replica: RunningReplica, fields: dict[str, Any], field: str
) -> None:
    async with replica.router() as stream:
        run = column(stream, ["a", "b"], **fields)
        await stream.send(run, stream.run([b"next"]))
        await stream.wait_answers(len(run.payloads) + 1)
        assert {(each.reason, each.metadata["field"]) for each in stream.failures.values()} == {("BAD_REQUEST", field)}
        assert list(stream.results.values()) == [b"next"]


async def test_what_a_session_left_is_kept_call_by_call(replica: RunningReplica) -> None:
    async with replica.router() as first:
        keys = ["a", "b", "a"]
        await first.send(column(first, keys, method="echo", session_id=SESSION, call_ids=[11]))
        await first.send(column(first, ["c", "d", "c"], method="wait", session_id=SESSION, call_ids=[21, 23, 25]))
        await first.wait_answers(3)
        await first.acknowledge((2, 2))
        await wait_until(lambda: len(replica.handler.started) == 2)
        async with replica.router("router-2") as second:
            answer = await second.reconcile(SESSION, 2, (1, 100))
            assert [(each.first, each.last) for each in answer.joined[0].calls] == [(21, 21), (23, 23)]
            assert [(each.first, each.last) for each in answer.kept[0].calls] == [(11, 11), (13, 13)]
            assert first.refused[6].reason == "SESSION_FENCED"
            again = column(
                second,
                ["a", "a", "c", "d", "c"],
                method="echo",
                session_id=SESSION,
                session_epoch=2,
                call_ids=[11, 13, 21, 23, 25],
                attempt=1,
            )
            await second.send(again)
            await second.wait_answers(2)
            replica.handler.open_all()
            await second.wait_answers(5)
            assert second.results == {1: b"0:a", 2: b"2:a", 3: b"0:c", 4: b"1:d", 5: b"4:c"}


async def test_recovery_asks_for_calls_of_many_keys(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(column(first, ["a", "b"], session_id=SESSION, call_ids=[1]))
        await first.wait_answers(2)
        async with replica.router("router-2") as second:
            await second.send(
                column(
                    second,
                    ["a", "b", "c"],
                    payloads=[b""] * 3,
                    session_id=SESSION,
                    session_epoch=2,
                    call_ids=[1],
                    recover=True,
                )
            )
            await second.wait_answers(3)
            assert second.results == {1: b"0:a", 2: b"1:b"}
            assert second.failures[3].reason == "RESULT_EVICTED"


async def test_a_router_that_goes_takes_what_has_not_started_with_it(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(column(stream, ["a", "b"] * 100, method="wait"))
        await wait_until(lambda: len(replica.handler.started) == 2)
    await wait_until(lambda: replica.engine.scheduler.is_idle)  # what runs is cancelled: nobody waits for it
    assert len(replica.handler.started) == 2


@pytest.mark.parametrize(
    ("origins", "field"),
    [
        ({"shard_keys": ["a", "b", "c"]}, "origins.shard_keys"),
        ({"affinity_keys": ["a", "b", "c"]}, "origins.affinity_keys"),
        ({"trace_starts": [2], "traceparents": [""]}, "origins.trace_starts"),
        ({"trace_starts": [0], "traceparents": ["nonsense"]}, "origins.traceparents"),
    ],
)
async def test_origins_that_are_wrong_fail_their_calls(
    replica: RunningReplica, origins: dict[str, Any], field: str
) -> None:
    async with replica.router() as stream:
        wrong = stream.run([b"a", b"b"], origins=replica_service_pb2.RunOrigins(**origins))
        await stream.send(wrong, stream.run([b"after"]))
        await stream.wait_answers(3)
        told = {(stream.failures[each].reason, stream.failures[each].metadata["field"]) for each in (1, 2)}
        assert told == {("BAD_REQUEST", field)}
        assert stream.results[3] == b"after"
