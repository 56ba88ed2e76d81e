"""Lanes that stop, over real gRPC: the router asks the replica whether a call has failed, and then fails it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from router_service.core.lifecycle import deadlines_and_cancellation
from slotmesh.errors import Executed
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import FakeReplica, hold
from tests.support.router_bench import Request, RouterBench, calls, outcomes, router_bench
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

SESSION = "570b" * 8


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


def questions(replica: FakeReplica) -> list[tuple[int, int]]:
    """Run ids of which the replica is to say whether their lanes stop there."""
    frames = [frame.cancel for frame in replica.frames if frame.cancel.tell_stopped]
    return [(each.first, each.last) for frame in frames for each in frame.runs]


async def test_a_call_that_is_taken_back_fails_when_its_replica_has_said_so(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    (replica, *_) = mesh.replicas
    replica.answer = hold
    call = await mesh.open(session_id=SESSION, epoch=1)
    await call.write(calls(1, b"1", b"2", ordering_key="k", stop_generation=1))
    await wait_until(lambda: len(replica.payloads) == 2)
    ids = [call_pb2.IdRange(first=1, last=1)]
    await call.write(Request(cancel=router_service_pb2.CancelCalls(calls=ids)))
    await wait_until(lambda: questions(replica))
    ((first, last),) = questions(replica)
    assert first == last
    stopped = replica_service_pb2.LanesStopped(runs=[call_pb2.IdRange(first=first, last=last)])
    await replica.say(replica_service_pb2.ExecuteResponse(stopped=stopped))
    _, failed = await outcomes(call, 1)
    assert {id_: (each.reason, each.executed) for id_, each in failed.items()} == {
        1: ("CANCELLED", Executed.UNKNOWN.value)
    }


async def test_a_result_that_was_on_its_way_comes_as_a_result(
    mesh: RouterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines_and_cancellation, "PATIENCE_S", 20.0)
    await mesh.linked(mesh.replicas[0])
    (replica, *_) = mesh.replicas
    replica.answer = hold
    call = await mesh.open(session_id=SESSION, epoch=1)
    await call.write(calls(1, b"1", ordering_key="k", stop_generation=1))
    await wait_until(lambda: replica.payloads)
    ids = [call_pb2.IdRange(first=1, last=1)]
    await call.write(Request(cancel=router_service_pb2.CancelCalls(calls=ids)))
    await wait_until(lambda: questions(replica))
    await replica.answer_held()
    assert await outcomes(call, 1) == ({1: b"1"}, {})


@pytest.mark.parametrize(("features", "limit"), [([], MAX_INLINE_BYTES), (["chunks"], 0)])
async def test_replicas_know_what_a_client_takes_of_one_result(
    mesh: RouterBench, features: list[str], limit: int
) -> None:
    await mesh.linked(mesh.replicas[0])
    call = await mesh.open(session_id=SESSION, epoch=1, features=features)
    await call.write(calls(1, b"1"))
    await outcomes(call, 1)
    assert [run.max_result_bytes for run in mesh.replicas[0].runs] == [limit]


@pytest.mark.parametrize(("fields", "needs"), [({}, "an ordering key"), ({"ordering_key": "k"}, "a session")])
async def test_what_stops_after_a_failure_needs_a_key_and_a_session(
    mesh: RouterBench, fields: dict[str, str], needs: str
) -> None:
    await mesh.linked(mesh.replicas[0])
    call = await mesh.open()
    await call.write(calls(1, b"a", stop_generation=1, **fields))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].metadata["field"]) == ("BAD_REQUEST", "options.stream.stop_generation")
    assert needs in failed[1].message
