"""Handlers that yield, over real gRPC: in sessions that move, and in lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.codec import JSON, encode
from tests.contract.replica.generator_calls import (
    BOTH,
    CREDIT,
    HANDLERS,
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
