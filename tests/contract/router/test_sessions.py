"""A router that serves sessions, over real gRPC, between scripted replicas and a bare client stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from router_service.shell.replicas import link as replica_link
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import FakeReplica, Response, fail, hold, results
from tests.support.router_bench import (
    Call,
    Request,
    RouterBench,
    batch,
    calls,
    next_frame,
    outcomes,
    router_bench,
    taken,
)
from tests.support.wait import wait_until

SESSION = "5e55" * 8


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


def again(mesh: RouterBench, first: int, *payloads: bytes, age_s: int = 0) -> Request:
    """A frame of all calls that were sent before, when the roster in force was known already."""
    resent = batch(first, *payloads)
    resent.resend = True
    resent.first_roster.CopyFrom(mesh.roster)
    resent.age.CopyFrom(duration_pb2.Duration(seconds=age_s))
    return Request(calls=router_service_pb2.CallFrame(batches=[resent], resent_all=True))


def span(first: int, last: int) -> call_pb2.IdRange:
    return call_pb2.IdRange(first=first, last=last)


def questions(replica: FakeReplica) -> list[replica_service_pb2.SessionCalls]:
    """What the replica was asked about."""
    return [each for frame in replica.frames for each in frame.reconcile.sessions]


def acked(replica: FakeReplica) -> list[tuple[int, int]]:
    """Runs whose outcomes the replica need not keep."""
    return [(each.first, each.last) for frame in replica.frames for each in frame.ack.runs]


def call_ids_of(run: replica_service_pb2.RunBatch) -> Sequence[int]:
    """The client's ids of the run's calls."""
    count = len(run.payloads)
    return run.call_ids if len(run.call_ids) == count else range(run.call_ids[0], run.call_ids[0] + count)


async def read_to_end(call: Call) -> grpc.StatusCode:
    """How the stream ends, on which nothing more comes."""
    assert await read_frame(call) is None
    code: grpc.StatusCode = await call.code()
    return code


async def tell(replica: FakeReplica, **found: list[call_pb2.IdRange]) -> None:
    """The replica answers the newest question."""
    asked = questions(replica)[-1]

    def of(calls: list[call_pb2.IdRange]) -> list[replica_service_pb2.SessionCalls]:
        return [
            replica_service_pb2.SessionCalls(session_id=asked.session_id, epoch=asked.epoch, calls=calls),
        ]

    answer = replica_service_pb2.Reconciled(joined=of([]))
    for name, spans in found.items():
        answer.ClearField(name)  # type: ignore[arg-type]  # `joined`, too, may be told
        getattr(answer, name).extend(of(spans))
    await replica.say(Response(reconciled=answer))


@pytest.mark.asyncio
async def test_runs_of_a_session_say_whose_they_are(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    call = await mesh.open(session_id=SESSION, epoch=1)
    await call.write(calls(7, b"a", b"b"))
    await outcomes(call, 2)
    (run,) = replica.runs
    assert (run.session_id, run.epoch, list(run.call_ids)) == (SESSION, 1, [7])
    plain = await mesh.open()
    await plain.write(calls(1, b"a"))
    await outcomes(plain, 1)
    assert (replica.runs[-1].session_id, list(replica.runs[-1].call_ids)) == ("", [])


@pytest.mark.asyncio
async def test_a_router_says_how_far_apart_heartbeats_of_idle_sessions_may_be(mesh: RouterBench) -> None:
    call = mesh.stub.StreamCalls()
    await call.write(Request(open=router_service_pb2.OpenStream(endpoint="echo", session_id=SESSION, epoch=1)))
    assert (await next_frame(call)).opened.idle_heartbeat.ToSeconds() == 60
    call.cancel()


@pytest.mark.asyncio
async def test_a_heartbeat_is_echoed(mesh: RouterBench) -> None:
    call = await mesh.open(session_id=SESSION, epoch=1)
    await call.write(Request(heartbeat=call_pb2.Heartbeat(stamp=77)))
    assert (await next_frame(call)).heartbeat.echoed_stamp == 77


@pytest.mark.asyncio
async def test_acknowledged_frames_reach_replicas_as_ranges_of_runs(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    call = await mesh.open(session_id=SESSION, epoch=1)
    for first in (1, 4, 7):
        await call.write(calls(first, b"a", b"b", b"c"))
        await outcomes(call, 3)
    replica.answer = fail
    await call.write(calls(10, b"a"))
    await outcomes(call, 1)
    assert not acked(replica)
    await call.write(Request(ack=router_service_pb2.AckResults(through_frame=3)))
    await wait_until(lambda: acked(replica) == [(1, 9)])
    await call.write(Request(ack=router_service_pb2.AckResults(through_frame=4)))
    await wait_until(lambda: acked(replica) == [(1, 9), (10, 10)])


@pytest.mark.asyncio
async def test_a_connection_that_breaks_cancels_nothing_and_the_next_one_recovers(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    replica.answer = hold
    first = await mesh.open(session_id=SESSION, epoch=1)
    await first.write(calls(1, b"a", b"b", b"c"))
    await wait_until(lambda: replica.runs)
    first.cancel()

    async with mesh.another_router() as other:
        second = await mesh.open(stub=other, session_id=SESSION, epoch=2, unanswered=[span(1, 4)])
        await wait_until(lambda: questions(replica))
        (asked,) = questions(replica)
        assert (asked.session_id, asked.epoch) == (SESSION, 2)
        assert [(each.first, each.last) for each in asked.calls] == [(1, 4)]
        await second.write(again(mesh, 1, b"a", b"b", b"c", b"d"))
        await taken(second)
        await tell(replica, joined=[span(1, 1)], kept=[span(2, 2)], evicted=[span(3, 3)])
        await wait_until(lambda: sum(len(run.payloads) for run in replica.runs) == 6)
        assert not any(frame.HasField("cancel") for frame in replica.frames)
        new = replica.runs[1:]
        recovered = [run for run in new if run.recover]
        assert [(list(run.call_ids), list(run.payloads)) for run in recovered] == [([1], [b"", b""])]
        assert [(list(run.call_ids), list(run.payloads)) for run in new if not run.recover] == [([4], [b"d"])]
        for run in new:
            answer = [b"A", b"B"] if run.recover else [b"D"]
            await replica.say(results(run, answer))
        done, failed = await outcomes(second, 4)
        assert done == {1: b"A", 2: b"B", 4: b"D"}
        assert failed[3].reason == "RESULT_EVICTED"
        second.cancel()


@pytest.mark.asyncio
async def test_a_newer_connection_at_the_same_router_ends_the_older_one(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    replica.answer = hold
    older = await mesh.open(session_id=SESSION, epoch=1)
    await older.write(calls(1, b"a"))
    await wait_until(lambda: replica.held)
    newer = await mesh.open(session_id=SESSION, epoch=2, unanswered=[span(1, 1)])
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await next_frame(older)
    assert error.value.code() is grpc.StatusCode.ABORTED
    await newer.write(again(mesh, 1, b"a"))
    await wait_until(lambda: questions(replica))
    await tell(replica, joined=[span(1, 1)])
    await wait_until(lambda: len(replica.held) == 2)
    await replica.say(results(replica.held[1], [b"A"]))
    assert (await outcomes(newer, 1))[0] == {1: b"A"}


@pytest.mark.asyncio
async def test_an_older_connection_is_turned_away(mesh: RouterBench) -> None:
    await mesh.open(session_id=SESSION, epoch=3)
    late = mesh.stub.StreamCalls()
    await late.write(Request(open=router_service_pb2.OpenStream(endpoint="echo", session_id=SESSION, epoch=2)))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await next_frame(late)
    assert error.value.code() is grpc.StatusCode.ABORTED
    assert "epoch 2" in (error.value.details() or "")


@pytest.mark.asyncio
@pytest.mark.parametrize("at", range(3))
async def test_the_end_of_an_older_connection_is_not_the_end_of_its_session(mesh: RouterBench, at: int) -> None:
    """Of three sessions one goes on over a second connection, and its first one ends after that has begun."""
    names = [f"{number:032x}" for number in range(3)]
    connections = [await mesh.open(session_id=name, epoch=1) for name in names]
    await mesh.open(session_id=names[at], epoch=3)
    with pytest.raises(grpc.aio.AioRpcError):
        await next_frame(connections[at])
    for number, name in enumerate(names):
        late = mesh.stub.StreamCalls()
        epoch = 2 if number == at else 1
        await late.write(Request(open=router_service_pb2.OpenStream(endpoint="echo", session_id=name, epoch=epoch)))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await next_frame(late)
        assert error.value.code() is grpc.StatusCode.ABORTED
        assert f"epoch {3 if number == at else 1} or above was opened" in (error.value.details() or "")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"session_id": "5E55" * 8, "epoch": 1}, "session_id"),
        ({"session_id": SESSION}, "epoch"),
        ({"epoch": 1}, "epoch"),
        ({"session_id": SESSION, "epoch": 1, "unanswered": [span(1, 1)]}, "unanswered"),
        ({"session_id": SESSION, "epoch": 2, "unanswered": [span(2, 1)]}, "unanswered"),
        ({"session_id": SESSION, "epoch": 2, "unanswered": [span(2, 3), span(3, 4)]}, "unanswered"),
        ({"unanswered": [span(1, 1)]}, "unanswered"),
    ],
)
async def test_what_is_wrong_with_a_session_is_named(mesh: RouterBench, fields: dict[str, Any], field: str) -> None:
    call = mesh.stub.StreamCalls()
    await call.write(Request(open=router_service_pb2.OpenStream(endpoint="echo", **fields)))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await next_frame(call)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"open.{field}" in (error.value.details() or "")


@pytest.mark.asyncio
@pytest.mark.parametrize("fields", [{}, {"session_id": SESSION, "epoch": 1}])
async def test_only_a_session_that_goes_on_sends_again(mesh: RouterBench, fields: dict[str, Any]) -> None:
    call = await mesh.open(**fields)
    await call.write(again(mesh, 1, b"a"))
    rejected = (await next_frame(call)).rejected
    assert rejected.failure.metadata["field"] == "resend"
    await call.write(calls(1, b"a"))
    assert (await outcomes(call, 1))[0] == {1: b"a"}


@pytest.mark.asyncio
async def test_calls_that_want_no_reply_come_back_as_ranges(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    replica.answer = lambda run: Response(
        results=call_pb2.ResultFrame(done=[span(run.first_run_id, run.first_run_id + len(run.payloads) - 1)])
    )
    call = await mesh.open()
    await call.write(calls(1, b"a", b"b", b"c", no_reply=True))
    frame = (await next_frame(call)).results
    assert [(each.first, each.last) for each in frame.done] == [(1, 3)]
    await call.write(calls(4, b"a", no_reply=True, content_type="application/json", ordering_key="k"))
    frame = (await next_frame(call)).results
    assert [(each.first, each.last) for each in frame.done] == [(4, 4)]


@pytest.mark.asyncio
async def test_a_stamp_of_a_replica_is_echoed(mesh: RouterBench) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    await replica.say(Response(heartbeat=call_pb2.Heartbeat(stamp=5)))
    await wait_until(lambda: [frame.heartbeat.echoed_stamp for frame in replica.frames] == [5])


@pytest.mark.asyncio
async def test_a_replica_that_falls_silent_is_lost(mesh: RouterBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_link, "SILENCE_S", 0.2)
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    replica.answer = hold
    await replica.say(Response(heartbeat=call_pb2.Heartbeat(stamp=5)))
    call = await mesh.open()
    await call.write(calls(1, b"a"))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "REPLICA_LOST"
    assert failed[1].executed == call_pb2.EXECUTED_UNKNOWN
    assert "sign of life" in failed[1].message


@pytest.mark.asyncio
async def test_a_replica_that_never_gave_signs_of_life_may_be_silent(
    mesh: RouterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_link, "SILENCE_S", 0.02)
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"a", timeout=duration_pb2.Duration(nanos=100_000_000)))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "DEADLINE_RUNNING"


@pytest.mark.asyncio
@pytest.mark.parametrize("is_lost", [False, True])
async def test_results_that_nobody_reads_are_dropped_and_fetched_again(mesh: RouterBench, is_lost: bool) -> None:
    (replica, _) = mesh.replicas
    await mesh.linked(replica)
    count, size = 256, 64 * 1024

    def answers(run: replica_service_pb2.RunBatch) -> Response:
        return results(run, [b"%d" % call_id + b" " * size for call_id in call_ids_of(run)])

    replica.answer = lambda run: answers(run) if run.recover else hold(run)
    call = await mesh.open(session_id=SESSION, epoch=1)
    for first in range(1, count + 1):
        await call.write(calls(first, b"a"))
    await wait_until(lambda: sum(len(run.payloads) for run in replica.held) == count)
    for run in replica.held:
        await replica.say(answers(run))
    await taken(await mesh.open())  # the router has read what the replica said, or will before it reads on
    if is_lost:
        replica.set_serving(False)  # it is not linked again
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked)
    await call.done_writing()
    done, failed = await outcomes(call, count)
    recovered = sum(len(run.payloads) for run in replica.runs if run.recover)
    assert all(payload.split()[0] == b"%d" % call_id for call_id, payload in done.items())
    if is_lost:
        assert {(each.reason, each.executed) for each in failed.values()} == {("RESULT_EVICTED", call_pb2.EXECUTED_YES)}
    else:
        assert not failed
        assert recovered >= count - 2 * 5 * 1024 * 1024 // size, "what is not read waits at the replica"
    assert await read_to_end(call) == grpc.StatusCode.OK
