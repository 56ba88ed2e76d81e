"""Sessions over real gRPC: which outcomes a replica keeps, and which link gets them, when clients change routers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import replica_service_pb2
from tests.support.execute_stream import ExecuteStream
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO, UNKNOWN, YES = 1, 2, 3
SESSION = "5e5510" * 5 + "00"
Reconciled = replica_service_pb2.Reconciled


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(graceful_timeout="200ms") as running:
        yield running


def calls_of(answers: object) -> list[tuple[int, int]]:
    return [(each.first, each.last) for answer in answers for each in answer.calls]  # type: ignore[attr-defined]


def told(answer: Reconciled) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
    """Calls that run, that are kept, that were evicted."""
    return calls_of(answer.joined), calls_of(answer.kept), calls_of(answer.evicted)


def recovery(stream: ExecuteStream, epoch: int, *call_ids: int, count: int = 0) -> replica_service_pb2.RunBatch:
    return stream.run(
        [b""] * (count or len(call_ids)),
        session_id=SESSION,
        session_epoch=epoch,
        call_ids=call_ids,
        recover=True,
    )


async def test_results_are_kept_until_they_are_acknowledged(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(first.run([b"a", b"b", b"c"], session_id=SESSION, call_ids=[11]))
        await first.wait_answers(3)
        await first.acknowledge((2, 2))
        await wait_until(lambda: replica.engine.sessions.unacknowledged == 1)
        async with replica.router("router-2") as second:
            answer = await second.reconcile(SESSION, 2, (1, 100))
            assert told(answer) == ([], [(11, 11), (13, 13)], [])
            assert [each.session_id for each in answer.joined] == [SESSION]
            await second.send(recovery(second, 2, 11, 13), recovery(second, 2, 12))
            await second.wait_answers(3)
            assert second.results == {1: b"a", 2: b"c"}
            assert (second.failures[3].reason, second.failures[3].executed) == ("RESULT_EVICTED", YES)
            await second.acknowledge((1, 2))
            await wait_until(lambda: replica.engine.sessions.unacknowledged == 0)


async def test_what_nobody_asks_for_is_forgotten(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a", b"b", b"c"], session_id=SESSION, call_ids=[1]))
        await stream.wait_answers(3)
        assert told(await stream.reconcile(SESSION, 2, (2, 2), (9, 9))) == ([], [(2, 2)], [])
        assert told(await stream.reconcile(SESSION, 2, (1, 9))) == ([], [(2, 2)], [])


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_calls_that_run_when_their_router_goes_run_on_and_others_never_start(
    replica: RunningReplica, method: str
) -> None:
    async with replica.router() as first:
        await first.send(first.run([b"a", b"b", b"c"], method=method, key="k", session_id=SESSION, call_ids=[1]))
        await wait_until(lambda: replica.handler.started == [b"a"])
    async with replica.router("router-2") as second:
        await wait_until(lambda: not replica.engine.scheduler.waiting)
        await wait_until(lambda: len(replica.engine._links) == 1)
        assert told(await second.reconcile(SESSION, 2, (1, 3))) == ([(1, 1)], [], [])
        await second.send(
            recovery(second, 2, 1),
            second.run([b"b", b"c"], method=method, key="k", session_id=SESSION, session_epoch=2, call_ids=[2]),
        )
        replica.handler.open_all()
        await second.wait_answers(3)
        assert second.results == {1: b"a", 2: b"b", 3: b"c"}
    assert replica.handler.started == [b"a", b"b", b"c"]


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_a_newer_epoch_starts_nothing_of_an_older_one(replica: RunningReplica, method: str) -> None:
    """The earlier router lives: it is told what was handed back, and that the rest is no longer its own."""
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(first.run([b"a", b"b", b"c"], method=method, key="k", session_id=SESSION, call_ids=[1]))
        await wait_until(lambda: replica.handler.started == [b"a"])
        assert told(await second.reconcile(SESSION, 2, (1, 3))) == ([(1, 1)], [], [])
        await first.send(first.run([b"late"], session_id=SESSION, call_ids=[4]))
        await second.send(recovery(second, 2, 1))
        await wait_until(lambda: first.refused)
        replica.handler.open_all()
        await second.wait_answers(1)
        await first.wait_answers(4)
        assert second.results == {1: b"a"}
        assert {(each.reason, each.executed) for each in first.refused.values()} == {("SESSION_FENCED", NO)}
        assert set(first.refused) == {2, 3, 4}
        assert (first.failures[1].reason, first.failures[1].executed) == ("SESSION_FENCED", UNKNOWN)
        assert told(await second.reconcile(SESSION, 2, (1, 4))) == ([], [(1, 1)], [])


async def test_an_older_epoch_is_told_nothing(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a"], session_id=SESSION, session_epoch=5, call_ids=[1]))
        await stream.wait_answers(1)
        overtaken = await stream.reconcile(SESSION, 4, (1, 1))
        assert told(overtaken) == ([], [], [])
        assert list(overtaken.forgotten) == [SESSION]
        newest = await stream.reconcile(SESSION, 6, (1, 1))
        assert told(newest) == ([], [(1, 1)], [])
        assert not newest.forgotten


async def test_a_session_that_was_silent_for_too_long_is_not_taken_for_one_that_was_never_here() -> None:
    async with running_replica(resume_ttl="50ms") as replica, replica.router() as stream:
        await stream.send(stream.run([b"a"], session_id=SESSION, session_epoch=3, call_ids=[1]))
        await stream.wait_answers(1)
        await wait_until(lambda: not replica.engine.sessions.unacknowledged)
        await stream.send(stream.run([b"b"], session_id=SESSION, session_epoch=2, call_ids=[2]))
        await wait_until(lambda: stream.refused)
        assert {each.reason for each in stream.refused.values()} == {"SESSION_FENCED"}
        answer = await stream.reconcile(SESSION, 4, (1, 1))
        assert told(answer) == ([], [], [])
        assert list(answer.forgotten) == [SESSION]


async def test_failures_are_kept_if_the_call_was_executed(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run([b"no"], method="fail", session_id=SESSION, call_ids=[1]),
            stream.run([b"no"], method="nowhere", session_id=SESSION, call_ids=[2]),
            stream.run([b"no"], time_left_s=0, session_id=SESSION, call_ids=[3]),
        )
        await stream.wait_answers(3)
        assert told(await stream.reconcile(SESSION, 2, (1, 3))) == ([], [(1, 1)], [])
        await stream.send(recovery(stream, 2, 1))
        await stream.wait_answers(4)
        assert stream.failures[4].reason == "HANDLER_ERROR"


async def test_another_attempt_at_a_known_call_does_not_execute_it_again(replica: RunningReplica) -> None:
    async with replica.router() as first:
        await first.send(first.run([b"a", b"b"], session_id=SESSION, call_ids=[1]))
        await first.send(first.run([b"c"], method="wait", session_id=SESSION, call_ids=[3]))
        await first.wait_answers(2)
        await wait_until(lambda: replica.handler.started)
    async with replica.router("router-2") as second:
        await second.send(
            second.run([b"A", b"B", b"C", b"D"], method="wait", session_id=SESSION, call_ids=[1, 2, 3, 4], attempt=1)
        )
        await wait_until(lambda: replica.handler.started == [b"c", b"D"])
        replica.handler.open_all()
        await second.wait_answers(4)
        assert second.results == {1: b"a", 2: b"b", 3: b"c", 4: b"D"}


async def test_a_joined_call_can_be_taken_back(replica: RunningReplica) -> None:
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(first.run([b"a"], method="wait", session_id=SESSION, call_ids=[1]))
        await wait_until(lambda: replica.handler.started)
        await second.reconcile(SESSION, 2, (1, 1))
        await second.send(recovery(second, 2, 1))
        await second.cancel((1, 1))
        await second.wait_answers(1)
        assert (second.failures[1].reason, second.failures[1].executed) == ("CANCELLED", UNKNOWN)


async def test_half_close_waits_for_joined_calls(replica: RunningReplica) -> None:
    async with replica.router() as first, replica.router("router-2") as second:
        await first.send(first.run([b"a"], method="wait", session_id=SESSION, call_ids=[1]))
        await wait_until(lambda: replica.handler.started)
        await second.reconcile(SESSION, 2, (1, 1))
        await second.send(recovery(second, 2, 1))
        await second.call.done_writing()
        await wait_until(lambda: replica.engine.sessions.owes(list(replica.engine._links)[1]))
        replica.handler.open_all()
        await wait_until(lambda: second.ended)
        assert (second.results, second.error) == ({1: b"a"}, None)


@pytest.mark.parametrize("session", [{}, {"session_id": SESSION, "call_ids": [1]}])
async def test_without_reply_only_the_end_is_told(replica: RunningReplica, session: dict[str, Any]) -> None:
    async with replica.router() as stream:
        fail = {**session, "call_ids": [9]} if session else {}
        await stream.send(
            stream.run([b"a"] * 3, no_reply=True, **session),
            stream.run([b"a"], method="fail", no_reply=True, **fail),
            stream.run([b"t"], method="thread", no_reply=True),
            stream.run([b"u"], method="upper", no_reply=True),
        )
        await stream.wait_answers(6)
        assert stream.done == {1, 2, 3, 4, 5, 6}
        if session:
            assert told(await stream.reconcile(SESSION, 2, (1, 9))) == ([], [(1, 3), (9, 9)], [])


# -- fencing -----------------------------------------------------------------------------------------------------


async def test_routers_hear_heartbeats(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await wait_until(lambda: len(stream.heartbeats) >= 2)
        stamps = [each.stamp for each in stream.heartbeats]
        assert stamps[1] - stamps[0] > 0.9e9


async def test_what_a_silent_router_sends_waits_until_it_echoes(replica: RunningReplica) -> None:
    async with replica.router() as stream, replica.router("router-2") as other:
        stream.echoes = False
        await stream.send(stream.run([b"no echo is under way any more"]))
        await stream.wait_answers(1)
        (link, _) = replica.engine._links
        link.fresh_until = 0.0
        await stream.send(stream.run([b"a"] * 3), stream.run([b"k"], key="k"), stream.run([b"u"], method="upper"))
        await wait_until(lambda: sum(len(run.payloads) for run in link.parked) == 5)
        await other.send(other.run([b"k"], key="k"), other.run([b"o"] * 8))
        await other.wait_answers(9)
        assert stream.answered == 1
        stream.echoes = True
        await stream.wait_answers(6)


# -- drain -------------------------------------------------------------------------------------------------------


async def test_a_draining_replica_stays_until_results_are_acknowledged() -> None:
    async with running_replica() as replica, replica.router() as stream:
        await stream.send(stream.run([b"a"], session_id=SESSION, call_ids=[1]))
        await stream.wait_answers(1)
        replica.app.replica.stop_asked.set()
        await wait_until(lambda: stream.go_away)
        assert told(await stream.reconcile(SESSION, 2, (1, 1))) == ([], [(1, 1)], [])
        await stream.send(recovery(stream, 2, 1))
        await stream.wait_answers(2)
        assert not replica.task.done()
        await stream.acknowledge((2, 2))
        await stream.call.done_writing()
        await wait_until(lambda: stream.ended)
        assert await replica.task == 0


async def test_a_draining_replica_can_be_asked_after_a_router_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has executed nothing of what they ask about, and no other process knows that."""
    monkeypatch.setattr("replica_service.shell.stopping.RESUME_S", 60.0)
    monkeypatch.setattr("replica_service.shell.stopping.ROUTER_RETURN_S", 0.05)
    async with running_replica() as replica, replica.router() as other:
        async with replica.router() as lost:
            await lost.send(lost.run([b"a"]))
            await lost.wait_answers(1)
            lost.call.cancel()
            await wait_until(lambda: len(replica.engine._links) == 1)
        replica.app.replica.stop_asked.set()
        await wait_until(lambda: other.go_away)
        assert told(await other.reconcile(SESSION, 2, (1, 9))) == ([], [], [])
        assert not other.is_dismissed, "until then its end is not announced"


async def test_a_draining_replica_stays_only_where_routers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replica_service.shell.stopping.ROUTER_RETURN_S", 0.05)
    async with running_replica() as replica:
        async with replica.router() as stream, replica.router() as other:
            await stream.send(stream.run([b"a"], session_id=SESSION, call_ids=[1]))
            await stream.wait_answers(1)
            replica.app.replica.stop_asked.set()
            await wait_until(lambda: other.go_away)
            await stream.call.done_writing()
            await wait_until(lambda: stream.ended)
            assert told(await other.reconcile(SESSION, 2, (1, 1))) == ([], [(1, 1)], [])
            assert not replica.task.done()
        async with asyncio.timeout(20.0):
            assert await replica.task == 0


async def test_a_draining_replica_does_not_stay_for_ever() -> None:
    async with running_replica(resume_ttl="50ms") as replica, replica.router() as stream:
        await stream.send(stream.run([b"a"], session_id=SESSION, call_ids=[1]))
        await stream.wait_answers(1)
        await stream.call.done_writing()
        assert await replica.stop() == 0
