"""Handlers that yield, over real gRPC: cancelled, past their deadline, at a replica that drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.errors import Reason
from slotmesh.v1 import call_pb2
from tests.contract.replica.generator_calls import (
    CREDIT,
    HANDLERS,
    SESSION,
    UNKNOWN,
    counted,
    failure,
    flowed,
    handler_of,
    has_values,
)
from tests.support.execute_stream import Request
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="200ms") as running:
        yield running


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
    async with replica.router() as stream:
        stream.echoes = False
        await stream.send(stream.run([b"no echo is under way any more"], method="plain"))
        await stream.wait_answers(1)
        (link,) = replica.engine._links
        link.fresh_until = 0.0
        await stream.send(stream.run([b"2"], method="count", streaming=True))
        await flowed(stream)
        assert stream.answered == 1
        stream.echoes = True
        await stream.wait_answers(2)
        assert stream.values[2] == counted(2)


async def test_a_frame_with_uneven_columns_takes_what_it_says(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"300"], method="count", streaming=True))
        await has_values(stream, 1, CREDIT)
        take = call_pb2.TakeItems(call_ids=[1, 2], counts=[100])
        await stream.write(Request(take=take))
        await stream.wait_answers(1)
        assert stream.done == {1}
