"""Outcomes on their way back, and reports of the load to routers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from slotmesh.codec import JSON
from slotmesh.errors import Executed, HandlerError, Reason
from slotmesh.handlers import batch, deployment
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from tests.support.wait import wait_until
from tests.unit.replica.hosting import RememberingOutbox, hosting, open_link

pytestmark = pytest.mark.asyncio


class Unreadable:
    def tolist(self) -> Any:
        raise RuntimeError("no reading")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@deployment
class Handler:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting = 0

    async def wait(self, payload: bytes) -> bytes:
        self.waiting += 1
        await self.gate.wait()
        return payload

    async def inflate(self, payload: bytes) -> Any:
        return bytes(int(payload))

    async def odd(self, kind: str) -> Any:
        return {"set": {1}, "object": object(), "unreadable": Unreadable(), "list": [1]}[kind]

    async def fail(self, payload: bytes) -> Any:
        match payload:
            case b"chosen":
                raise HandlerError("no such image", status="NOT_FOUND")
            case b"unknown status":
                raise HandlerError("what?", status="NO_SUCH_STATUS")
            case b"surrogate":
                raise ValueError("\udcff")
            case b"long":
                raise ValueError("x" * 100_000)
            case b"empty":
                raise ValueError
            case b"unspeakable":
                raise Unspeakable
            case _:
                return payload

    @batch(max_batch_size=2, batch_wait_timeout_s=0.005)
    async def pair(self, items: list[bytes]) -> list[bytes]:
        return items


async def test_a_result_over_the_limit_fails_its_call_only() -> None:
    async with hosting(Handler) as host:
        sizes = [b"1", b"%d" % (MAX_PAYLOAD_BYTES + 1), b"%d" % MAX_PAYLOAD_BYTES]
        run = host.run("inflate", sizes)
        outbox = await host.execute(run)
        assert [len(result or b"") for result in host.results(run)] == [1, 0, MAX_PAYLOAD_BYTES]
        failure = outbox.failures_of[run.first + 1]
        assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)
        assert str(MAX_PAYLOAD_BYTES + 1) in failure.message
        assert failure.metadata == {"actual": str(MAX_PAYLOAD_BYTES + 1), "limit": str(MAX_PAYLOAD_BYTES)}


async def test_a_result_that_cannot_be_sent_fails_its_call_only() -> None:
    async with hosting(Handler) as host:
        run = host.run("odd", [b'["list"]', b'["object"]', b'["unreadable"]', b'["set"]'], content_type=JSON)
        outbox = await host.execute(run)
        assert host.results(run) == [b"[1]", None, None, b"[1]"]
        for index in (1, 2):
            failure = outbox.failures_of[run.first + index]
            assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.YES)
            assert failure.message.startswith("the result cannot be sent: ")


async def test_a_handler_may_choose_the_status() -> None:
    async with hosting(Handler) as host:
        run = host.run("fail", [b"chosen", b"unknown status"])
        outbox = await host.execute(run)
        chosen, unknown = (outbox.failures_of[run.first + index] for index in (0, 1))
        assert (chosen.code, chosen.message, chosen.reason) == (5, "no such image", Reason.HANDLER_ERROR)
        assert (unknown.code, unknown.message) == (None, "HandlerError: what?")


async def test_every_exception_has_a_message_that_can_be_sent(caplog: pytest.LogCaptureFixture) -> None:
    # Unlogged here: a runner that collects logs from processes of its own cannot send them either.
    caplog.set_level(logging.CRITICAL, "replica_service.shell.handler.failures")
    async with hosting(Handler) as host:
        run = host.run("fail", [b"surrogate", b"long", b"empty", b"unspeakable"])
        outbox = await host.execute(run)
        messages = [outbox.failures_of[run.first + index].message for index in range(4)]
        assert messages[0] == "ValueError: ?"
        assert len(messages[1]) < 5_000
        assert messages[2:] == ["ValueError", "Unspeakable: (no text)"]


async def test_tracebacks_are_logged_but_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    async with hosting(Handler) as host:
        await host.execute(host.run("fail", [b"empty"] * 500))
    logged = [record for record in caplog.records if record.message.startswith("handler raised")]
    assert 1 <= len(logged) <= 10
    assert logged[0].exc_info is not None


@pytest.mark.parametrize("logs_texts", [False, True])
async def test_a_text_that_may_quote_the_call_is_logged_where_asked_for(
    logs_texts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosting(Handler) as host:
        host.engine.errors.logs_texts = logs_texts
        run = host.run("fail", [b"long"])
        outbox = await host.execute(run)
    assert "xxx" in outbox.failures_of[run.first].message, "the caller has it"
    (logged,) = [record for record in caplog.records if record.message.startswith("handler raised")]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is not None
    assert logged.exc_info[0].__name__ == "ValueError"
    assert ("xxx" in caplog.text) is logs_texts


async def test_batches_are_cut_by_the_clock() -> None:
    async with hosting(Handler) as host:
        run = host.run("pair", [b"1", b"2", b"3"])
        await host.execute(run)
        assert host.engine.counters.batches == 2


async def test_a_router_that_had_no_room_hears_of_room() -> None:
    async with hosting(Handler, max_ongoing=2, prefetch=0) as host:
        other, _ = open_link(host.engine)
        other.outbox = outbox = RememberingOutbox()
        host.engine._links[other] = outbox  # type: ignore[assignment]
        host.engine.submit([host.run("wait", [b"1", b"2"])])
        host.engine.submit([host.run("wait", [b"3"], link=other)])
        assert [failure.reason for failure in outbox.refusals_of.values()] == [Reason.QUEUE_FULL]
        assert host.engine.scheduler.capacity(other).others == 2
        host.handler.gate.set()
        await wait_until(lambda: outbox.capacity_told == 1)


async def test_a_link_that_is_closed_starts_nothing_more() -> None:
    async with hosting(Handler, max_ongoing=1, prefetch=5) as host:
        host.engine.submit([host.run("wait", [b"1", b"2"]), host.run("wait", [b"3"], key="k")])
        await wait_until(lambda: host.handler.waiting)
        host.engine.close(host.link)
        await asyncio.wait_for(host.engine.idle(), 5)
        assert host.handler.waiting == 1
        assert host.engine.counters.calls == 0, "nobody would have had the result"


async def test_a_call_that_nobody_waits_for_outlives_its_link() -> None:
    async with hosting(Handler) as host:
        host.engine.submit([host.run("wait", [b"1"], no_reply=True)])
        await wait_until(lambda: host.handler.waiting)
        host.engine.close(host.link)
        host.handler.gate.set()
        await asyncio.wait_for(host.engine.idle(), 5)
        assert host.engine.counters.calls == 1


async def test_finish_returns_when_all_is_answered() -> None:
    async with hosting(Handler) as host:
        finish = asyncio.ensure_future(host.engine.finish(host.link))
        await asyncio.wait_for(finish, 5)
        host.engine.submit([host.run("wait", [b"1"], key="k"), host.run("wait", [b"2"])])
        finish = asyncio.ensure_future(host.engine.finish(host.link))
        await asyncio.sleep(0)
        assert not finish.done()
        host.handler.gate.set()
        await asyncio.wait_for(finish, 5)
        assert len(host.outbox.results_of) == 2


async def test_revoke_tells_of_each_partition_when_it_is_empty() -> None:
    async with hosting(Handler) as host:
        run, waiting = host.run("wait", [b"1"], key="k"), host.run("wait", [b"2"], key="k")
        host.engine.submit([run, waiting])
        waves = host.engine.revoke({"e": {0: 0, 1: 0}})
        assert await anext(waves) == {"e": {1: 0}}
        assert list(host.outbox.refusals_of) == [waiting.first]
        last = asyncio.ensure_future(anext(waves))
        await asyncio.sleep(0)
        assert not last.done()
        host.handler.gate.set()
        assert await asyncio.wait_for(last, 5) == {"e": {0: 0}}
        assert [wave async for wave in waves] == []


async def test_partitions_of_many_endpoints_are_revoked_in_one_step_and_reported_in_one_answer() -> None:
    async with hosting(Handler) as host:
        steps, follow = list[object](), host.engine.scheduler.follow

        def counted(event: Any, now: float, commands: Any) -> None:
            steps.append(event)
            follow(event, now, commands)

        host.engine.scheduler.follow = counted  # type: ignore[method-assign]
        waves = host.engine.revoke({f"e{at}": {0: at, 7: at} for at in range(300)})
        assert await anext(waves) == {f"e{at}": {0: at, 7: at} for at in range(300)}
        assert [wave async for wave in waves] == []
        assert len(steps) == 1


async def test_new_settings_reach_the_routers() -> None:
    async with hosting(Handler, max_ongoing=1) as host:
        _, outbox = open_link(host.engine)
        outbox.next_frame()
        host.engine.configure(max_ongoing=7, prefetch=3)
        frame = outbox.next_frame()
        assert frame is not None
        assert (frame.capacity.max_ongoing, frame.capacity.prefetch) == (7, 3)
