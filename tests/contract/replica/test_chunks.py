"""Large payloads over real gRPC: calls whose arguments come in chunks, and results that leave in chunks."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLERS = "tests.contract.large_handlers"
NO, UNKNOWN, YES = 1, 2, 3
SESSION = "c4" * 16
LARGE = b"".join(bytes([index % 251]) * 4096 for index in range(250))
"""Four chunks, the last of which is not full."""


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="200ms") as running:
        yield running


def digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=8).digest()


def failure(stream: ExecuteStream, run_id: int) -> tuple[str, int, str]:
    """Reason, whether it was executed, and the field at fault."""
    found = stream.failures[run_id]
    return found.reason, found.executed, found.metadata.get("field", "")


# -- in ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [{}, {"session_id": SESSION, "call_ids": [1]}])
@pytest.mark.parametrize("method", ["digest", "digest_in_thread", "digest_together"])
async def test_a_call_runs_when_its_payload_is_there(
    replica: RunningReplica, method: str, session: dict[str, Any]
) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), 0, method=method, **session), stream.run([b"small"], method=method))
        await stream.wait_answers(2)
        assert set(stream.results) == {2, 3}
        await stream.send_chunks(1, LARGE)
        await stream.wait_answers(3)
        assert stream.results[1] == digest(LARGE)
        assert stream.results[2] == digest(b"")


@pytest.mark.parametrize("sizes", [(150_000,), (1_000_000, 0, 40_000), (0, 90_000, 90_000)])
async def test_large_payloads_may_be_in_their_frame(replica: RunningReplica, sizes: tuple[int, ...]) -> None:
    payloads = [LARGE[at : at + size] for at, size in enumerate(sizes)]
    async with replica.router() as stream:
        await stream.send(stream.run(payloads, method="digest"))
        await stream.wait_answers(len(payloads))
        assert stream.results == dict(enumerate(map(digest, payloads), 1))


async def test_calls_of_its_key_wait_behind_it_and_others_pass(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run([b"1"], method="digest", key="k"),
            stream.large(len(LARGE), method="digest", key="k"),
            stream.run([b"3"], method="digest", key="k"),
            stream.large(len(LARGE), method="digest_together", key="k"),
            stream.run([b"5"], method="digest_together", key="k"),
            stream.run([b"6"], method="digest", key="other"),
        )
        await stream.wait_answers(2)
        assert set(stream.results) == {1, 6}
        await stream.send_chunks(4, LARGE[:-1], end=0)
        await stream.send_chunks(4, LARGE)
        await stream.send_chunks(2, LARGE)
        await stream.wait_answers(6)
        assert replica.handler.seen == [digest(each) for each in (b"1", b"6", LARGE, b"3", LARGE, b"5")]


async def test_a_batch_does_not_take_a_call_without_its_payload(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run([b"1"], method="digest_together", key="k"),
            stream.large(len(LARGE), method="digest_together", key="k"),
        )
        await stream.wait_answers(1)
        await stream.send_chunks(2, LARGE)
        await stream.wait_answers(2)
        assert replica.handler.seen == [digest(b"1"), digest(LARGE)]


async def test_one_batch_has_large_and_small_calls_of_many_keys(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        payloads = [b"", b"1", b"", b"3", b"4"]
        sizes = [len(LARGE), 0, len(LARGE), 0, 0]
        columns: dict[str, Any] = {
            "ordering_keys": ["a", "b", "b", "b", ""],
            "partitions": [1] * 5,
            "owner_epochs": [1] * 5,
        }
        await stream.send(stream.run(payloads, method="digest", chunked_sizes=sizes, **columns))
        await stream.wait_answers(2)
        assert set(stream.results) == {2, 5}
        await stream.send_chunks(3, LARGE)
        await stream.wait_answers(4)
        assert set(stream.results) == {2, 3, 4, 5}
        await stream.send_chunks(1, LARGE)
        await stream.wait_answers(5)


async def test_chunks_of_several_payloads_may_take_turns(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), len(LARGE), method="digest"))
        for begin in range(0, len(LARGE), CHUNK_BYTES):
            await stream.send_chunks(1, LARGE, begin=begin, end=begin + 1)
            await stream.send_chunks(2, LARGE, begin=begin, end=begin + 1)
        await stream.wait_answers(2)
        assert stream.results == {1: digest(LARGE), 2: digest(LARGE)}


@pytest.mark.parametrize(
    ("offset", "total", "size", "field"),
    [
        (1, len(LARGE), 10, "chunk.offset"),
        (0, len(LARGE) + 1, 10, "chunk.total"),
        (0, len(LARGE), 0, "chunk.data"),
        (0, len(LARGE), LARGE_CHUNK_BYTES + 1, "chunk.data"),
    ],
)
async def test_a_chunk_that_breaks_the_rules_fails_its_call_alone(
    replica: RunningReplica, offset: int, total: int, size: int, field: str
) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), method="digest", key="k"), stream.run([b"2"], key="k"))
        await stream.send_chunk(1, offset, total, bytes(size))
        await stream.wait_answers(2)
        assert failure(stream, 1) == ("BAD_REQUEST", NO, field)
        assert stream.results == {2: b"2"}
        await stream.send_chunks(1, LARGE)  # too late: nobody minds
        await stream.send_chunks(77, LARGE)
        await stream.send(stream.run([b"3"]))
        await stream.wait_answers(3)


@pytest.mark.parametrize(
    ("sizes", "payloads", "reason"),
    [
        ([1], [b"", b""], "BAD_REQUEST"),
        ([-1, 0], [b"", b""], "BAD_REQUEST"),
        ([5, 0], [b"here", b""], "BAD_REQUEST"),
        ([MAX_PAYLOAD_BYTES + 1, 0], [b"", b""], "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_sizes_that_make_no_sense_fail_their_batch(
    replica: RunningReplica, sizes: list[int], payloads: list[bytes], reason: str
) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run(payloads, chunked_sizes=sizes), stream.run([b"next"]))
        await stream.wait_answers(3)
        assert failure(stream, 1) == failure(stream, 2) == (reason, NO, "chunked_sizes")


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_call_is_taken_back_before_its_payload_is_there(replica: RunningReplica, key: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), method="digest", key=key), stream.run([b"2"], key=key))
        await stream.send_chunks(1, LARGE, end=1)
        await stream.cancel((1, 1))
        await stream.wait_answers(2)
        assert failure(stream, 1)[:2] == ("CANCELLED", NO)
        (link,) = replica.engine._links
        assert not link.uploads
        assert not link.waiting
        assert replica.engine.scheduler.is_idle


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_deadline_passes_while_the_payload_is_under_way(replica: RunningReplica, key: str) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.large(len(LARGE), method="digest", key=key, time_left_s=0.05), stream.run([b"2"], key=key)
        )
        await stream.wait_answers(2)
        assert failure(stream, 1)[:2] == ("DEADLINE_IN_QUEUE", NO)
        assert stream.results == {2: b"2"}


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_router_that_goes_takes_its_uploads_with_it(replica: RunningReplica, key: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), method="digest", key=key), stream.run([b"2"], key=key))
        await stream.send_chunks(1, LARGE, end=1)
        await wait_until(lambda: any(link.uploads for link in replica.engine._links))
        (link,) = replica.engine._links
    await wait_until(lambda: replica.engine.scheduler.is_idle)
    assert not link.uploads


async def test_half_close_fails_what_is_not_complete(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), method="digest", key="k"), stream.run([b"2"], key="k"))
        await stream.send_chunks(1, LARGE, end=1)
        await stream.call.done_writing()
        await stream.wait_answers(2)
        assert failure(stream, 1) == ("BAD_REQUEST", NO, "chunk")
        assert str(CHUNK_BYTES) in stream.failures[1].message
        await wait_until(lambda: stream.ended)
        assert stream.error is None


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_replica_that_drains_hands_uploads_back(replica: RunningReplica, key: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), method="digest", key=key))
        await wait_until(lambda: any(link.waiting for link in replica.engine._links))
        replica.app.replica.stop_asked.set()
        await stream.wait_answers(1)
        assert stream.refused[1].reason == "DRAINING"


async def test_a_partition_that_moves_away_takes_uploads_with_it(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.large(len(LARGE), method="digest", key="k", partition=5))
        await wait_until(lambda: any(link.waiting for link in replica.engine._links))
        assert [gone async for gone in replica.engine.revoke({"e": {5: 1}})] == [{"e": {5: 1}}]
        await stream.wait_answers(1)
        assert stream.refused[1].reason == "STALE_TABLE"


async def test_uploads_count_as_calls_that_are_here(replica: RunningReplica) -> None:
    """`max_ongoing` is 8, `prefetch` 2."""
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(first.large(*[len(LARGE)] * 12, method="digest"))
        await first.wait_answers(2)
        assert {each.reason for each in first.refused.values()} == {"QUEUE_FULL"}
        assert set(first.refused) == {11, 12}
        await second.send(second.run([b"x"]))
        await second.wait_answers(1)
        assert second.refused[1].reason == "QUEUE_FULL"
        assert second.capacities[-1].others == 10
        assert first.capacities[-1].others == 0
        for run_id in range(1, 11):
            await first.send_chunks(run_id, LARGE)
        await first.wait_answers(12)
        await wait_until(lambda: second.capacities[-1].others < 10)


async def test_a_session_that_moves_on_ends_uploads(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(first.large(len(LARGE), method="digest", session_id=SESSION, call_ids=[1]))
        await first.send_chunks(1, LARGE, end=1)
        await wait_until(lambda: any(link.uploads for link in replica.engine._links))
        async with replica.router("router-2") as second:
            answer = await second.reconcile(SESSION, 2, (1, 9))
            assert not answer.joined[0].calls
            assert not answer.kept
            await first.wait_answers(1)
            assert first.refused[1].reason == "SESSION_FENCED"
            again = second.large(
                len(LARGE), method="digest", session_id=SESSION, session_epoch=2, call_ids=[1], attempt=1
            )
            await second.send(again)
            await second.send_chunks(1, LARGE)
            await second.wait_answers(1)
            assert second.results == {1: digest(LARGE)}


async def test_a_call_that_has_run_is_not_uploaded_again(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(first.run([b"1"], method="digest", session_id=SESSION, call_ids=[1]))
        await first.wait_answers(1)
        async with replica.router("router-2") as second:
            again = second.large(
                len(LARGE), method="digest", session_id=SESSION, session_epoch=2, call_ids=[1], attempt=1
            )
            await second.send(again)
            await second.wait_answers(1)
            await second.send_chunks(1, LARGE)
            await second.send(second.run([b"2"], method="digest"))
            await second.wait_answers(2)
            assert second.results[1] == digest(b"1")


# -- out ---------------------------------------------------------------------------------------------------------


async def test_large_results_leave_in_chunks(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"%d" % size for size in (5, CHUNK_BYTES, CHUNK_BYTES + 1, 10)], method="make"))
        await stream.wait_answers(4)
        assert [len(stream.results[run_id]) for run_id in (1, 2, 3, 4)] == [5, CHUNK_BYTES, CHUNK_BYTES + 1, 10]
        assert stream.frames.count("chunk") == 1


async def test_the_largest_result(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        session: dict[str, Any] = {"session_id": SESSION, "call_ids": [1]}
        await stream.send(stream.run([b"%d" % MAX_PAYLOAD_BYTES], method="make", **session))
        await stream.send(stream.run([b"%d" % (MAX_PAYLOAD_BYTES + 1)], method="make"))
        await stream.wait_answers(2, timeout=20)
        assert len(stream.results[1]) == MAX_PAYLOAD_BYTES
        assert failure(stream, 2)[:2] == ("PAYLOAD_TOO_LARGE", YES)
        async with replica.router("router-2") as second:
            await second.send(recovery(second))
            await second.wait_answers(1, timeout=20)
            assert len(second.results[1]) == MAX_PAYLOAD_BYTES


def recovery(stream: ExecuteStream) -> replica_service_pb2.RunBatch:
    return stream.run([b""], session_id=SESSION, session_epoch=2, call_ids=[1], recover=True)


async def test_kept_results_leave_in_chunks_again(replica: RunningReplica) -> None:
    size = MAX_INLINE_BYTES + 1
    async with replica.router() as first:
        await first.send(first.run([b"%d" % size], method="make", session_id=SESSION, call_ids=[1]))
        await first.wait_answers(1)
        async with replica.router("router-2") as second:
            await second.send(recovery(second))
            await second.wait_answers(1)
            assert second.results[1] == first.results[1]
            assert second.frames.count("chunk") == first.frames.count("chunk") > 1
