"""Clients that call and do not read: their cost to a router is bounded, and clients that read are not affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from router_service.core.limits.unread_results import MAX_QUEUED_BYTES, STUCK_S
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.support.fakes.replica import FakeReplica, hold, results
from tests.support.router_bench import Call, RouterBench, calls, outcomes, router_bench
from tests.support.wait import wait_until

SIZE = 250_000
Run = replica_service_pb2.RunBatch


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def large(run: Run) -> replica_service_pb2.ExecuteResponse:
    """Results that begin with the ids of their calls, which the arguments end with; a replica that keeps them knows."""
    ids = [b"%d" % (run.call_ids[0] + at) if run.recover else each.split()[1] for at, each in enumerate(run.payloads)]
    return results(run, [each + b" " * SIZE for each in ids])


async def made(
    mesh: RouterBench, replica: FakeReplica, streams: int, count: int, *, in_session: bool = False
) -> list[Call]:
    """Streams with calls that the replica holds, a run each."""
    replica.answer = lambda run: hold(run) if run.payloads[0].startswith(b"large") else large(run)
    opened = []
    for number in range(streams):
        call = await mesh.open(session_id=f"{number:032x}", epoch=1) if in_session else await mesh.open()
        opened.append(call)
        for first in range(1, count + 1):
            await call.write(calls(first, b"large %d" % first))
    await wait_until(lambda: sum(len(run.payloads) for run in replica.held) == streams * count, what="all are held")
    return opened


async def answered_beside_a_bystander(mesh: RouterBench, replica: FakeReplica) -> None:
    """All that is held is answered, a run at a time, over more time than a client may be stuck for."""
    bystander = await mesh.open()
    loop = asyncio.get_running_loop()
    half = len(replica.held) // 2
    asked, stuck_at = 0, 0.0

    async def asks() -> None:
        nonlocal asked
        asked += 1
        await bystander.write(calls(asked, b"small %d" % asked))
        done, failed = await outcomes(bystander, 1)
        assert (list(done), failed) == ([asked], {})

    for at, run in enumerate(replica.held):
        await replica.say(large(run))
        await asks()
        if at == half:
            stuck_at = loop.time() + 2 * STUCK_S
    while loop.time() < stuck_at:
        await asks()


@pytest.mark.asyncio
async def test_results_that_a_client_without_a_session_does_not_read_are_lost_and_it_hears_so(
    mesh: RouterBench,
) -> None:
    (replica, _) = mesh.replicas
    count = 2 * MAX_QUEUED_BYTES // SIZE
    (call,) = await made(mesh, replica, 1, count)
    first, replica.held = replica.held[: count // 2], replica.held[count // 2 :]
    rest = replica.held
    replica.held = first
    await answered_beside_a_bystander(mesh, replica)
    replica.held = rest
    await answered_beside_a_bystander(mesh, replica)
    done, failed = await outcomes(call, count)
    assert done
    assert failed
    assert {(each.reason, each.executed) for each in failed.values()} == {("RESULT_EVICTED", call_pb2.EXECUTED_YES)}
    assert all(payload.split()[0] == b"%d" % call_id for call_id, payload in done.items())


@pytest.mark.asyncio
async def test_sessions_that_do_not_read_have_all_results_when_they_read_again(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    streams, count = 12, 14  # less of each than one stream alone may leave unread
    slow = await made(mesh, replica, streams, count, in_session=True)
    assert streams * count * SIZE > 2 * MAX_QUEUED_BYTES
    await answered_beside_a_bystander(mesh, replica)
    for call in slow:
        done, failed = await outcomes(call, count)
        assert not failed
        assert all(payload.split()[0] == b"%d" % call_id for call_id, payload in done.items())
    assert any(run.recover for run in replica.runs), "some were dropped, and fetched again"
