"""Calls of a session that went on at another router: which of them a cancel of the earlier router still ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.session_records import Record
from replica_service.core.work import Claim, TurnClaims
from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, RememberingOutbox, hosting, open_link

SESSION = "5e55" * 8


@deployment(max_ongoing=4, own_loop=True)
class Handler:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_blocked = False
        self.seen: list[str] = []

    async def block(self) -> None:
        """Keeps the handler's loop."""
        self.is_blocked = True
        self.gate.wait(10)

    async def wait(self, item: str) -> str:
        self.seen.append(item)
        await wait_until(self.gate.is_set)
        return item

    def threaded(self, item: str) -> str:
        return item

    async def yields(self, item: str) -> AsyncIterator[str]:
        self.seen.append(item)
        yield item


def submit(host: Hosting, method: str, key: str) -> ReplicaRun:
    """A router sends call 1 of the session."""
    run = host.run(method, [b'["1"]'], key=key, content_type=JSON)
    run.record = Record(SESSION, 1, range(1, 2), 1, attempt=0, recovers=False)
    host.engine.submit([run])
    return run


def taken_over(host: Hosting, method: str, key: str) -> tuple[RouterPeer, RememberingOutbox]:
    """The session goes on at another router, which hears that the call runs, and wants its outcome."""
    engine = host.engine
    ((_, _, report),) = engine.reconcile([(SESSION, 2, [(1, 1)])])
    assert report.running == [(1, 1)]
    link, _ = open_link(engine)
    link.outbox = outbox = RememberingOutbox()
    options = ReplicaCallOptions(method=method, content_type=JSON, ordering_key=key)
    asking = ReplicaRun(link, 1, [b""], options, "e", host.clock.now())
    asking.record = Record(SESSION, 2, range(1, 2), 1, attempt=0, recovers=True)
    engine.submit([asking])
    return link, outbox


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "k"], ids=["unkeyed", "keyed"])
async def test_a_call_that_had_not_begun_when_its_session_moved_was_not_cancelled(key: str) -> None:
    async with hosting(Handler, own_loop=True) as host:
        engine, handler = host.engine, host.handler
        engine.submit([host.run("block", [b"[]"], content_type=JSON)])
        await wait_until(lambda: handler.is_blocked)
        submit(host, "yields", key)
        _, outbox = taken_over(host, "yields", key)
        engine.close(host.link)  # the router that had it is gone

        handler.gate.set()
        await wait_until(lambda: outbox.order)
        assert not outbox.failures_of
        failure = outbox.refusals_of[1]
        assert (failure.reason, failure.executed) == (Reason.BACKEND_UNAVAILABLE, Executed.NO)
        assert not handler.seen
        await asyncio.wait_for(engine.idle(), 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "k"], ids=["unkeyed", "keyed"])
async def test_a_call_that_had_not_begun_when_its_router_sent_it_again(key: str) -> None:
    """Its executor gives it back later. The session is where it was: the router may send the call once more."""
    async with hosting(Handler, own_loop=True) as host:
        engine, handler = host.engine, host.handler
        engine.submit([host.run("block", [b"[]"], content_type=JSON)])
        await wait_until(lambda: handler.is_blocked)
        submit(host, "yields", key)
        again = host.run("yields", [b'["1"]'], key=key, content_type=JSON, link=open_link(engine)[0])
        again.link.outbox = outbox = RememberingOutbox()
        again.record = Record(SESSION, 1, range(1, 2), 1, attempt=1, recovers=False)
        engine.submit([again])
        engine.close(host.link)
        handler.gate.set()
        await wait_until(lambda: outbox.order)
        failure = outbox.refusals_of[again.first]
        assert (failure.reason, failure.executed) == (Reason.BACKEND_UNAVAILABLE, Executed.NO)
        assert not handler.seen
        await asyncio.wait_for(engine.idle(), 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True], ids=["one loop", "own loop"])
@pytest.mark.parametrize("key", ["", "k"], ids=["unkeyed", "keyed"])
async def test_the_router_that_the_session_has_left_takes_nothing_back(key: str, own_loop: bool) -> None:
    """It may not know yet, and find that the call's time is over; by its clock, and by what it knows."""
    async with hosting(Handler, own_loop=own_loop) as host:
        run = submit(host, "wait", key)
        await wait_until(lambda: host.handler.seen)
        _, outbox = taken_over(host, "wait", key)
        host.engine.cancel(host.link, [(run.first, run.first)])
        await asyncio.sleep(0)
        host.handler.gate.set()
        await wait_until(lambda: outbox.order)
        assert outbox.results_of == {1: b'"1"'}
        await asyncio.wait_for(host.engine.idle(), 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["", "k"], ids=["unkeyed", "keyed"])
async def test_the_router_where_it_is_now_does(key: str) -> None:
    async with hosting(Handler) as host:
        submit(host, "wait", key)
        await wait_until(lambda: host.handler.seen)
        link, outbox = taken_over(host, "wait", key)
        host.engine.cancel(link, [(1, 1)])
        await wait_until(lambda: outbox.order)
        assert outbox.failures_of[1].reason is Reason.CANCELLED
        await asyncio.wait_for(host.engine.idle(), 5)


@pytest.mark.asyncio
async def test_a_call_that_a_thread_has_just_taken_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session moves right then: whoever asks is told that the call runs."""
    async with hosting(Handler) as host:
        loop, threads, outboxes = asyncio.get_running_loop(), host.engine._executors.threads, list[RememberingOutbox]()
        claims = TurnClaims(threading.Lock())

        class Moving:
            go_on, hold = claims.go_on, claims.hold

            def claim(self, turn: StartTurn, index: int, now: float, most: int = 1) -> Claim:
                claimed = claims.claim(turn, index, now, most)
                moved = threading.Event()

                def move() -> None:
                    outboxes.append(taken_over(host, "threaded", "k")[1])
                    moved.set()

                if claimed is not None:
                    loop.call_soon_threadsafe(move)
                    assert moved.wait(10)
                return claimed

        monkeypatch.setattr(threads, "_turns", Moving())
        submit(host, "threaded", "k")
        await wait_until(lambda: outboxes and outboxes[0].order)
        assert outboxes[0].results_of == {1: b'"1"'}
        await asyncio.wait_for(host.engine.idle(), 5)
