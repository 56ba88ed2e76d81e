"""What a call leaves behind, as a timer or a task does, keeps the call's context, and no payload of its frame."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Iterator, Sequence
from sys import getrefcount
from typing import Final

import pytest

import slotmesh
from slotmesh.handlers import batch, deployment
from slotmesh.handlers.context import asking
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting
from tests.unit.replica.ways_to_run import OWN_LOOP, UNKEYED, WAYS, Way

pytestmark = pytest.mark.asyncio

COUNT: Final = 12


@deployment(max_ongoing=64)
class KeepsContexts:
    """Each method leaves the context of its call behind, as `loop.call_later` would."""

    def __init__(self) -> None:
        self.kept: list[contextvars.Context] = []

    async def quick(self, payload: bytes) -> bytes:
        self.kept.append(contextvars.copy_context())
        return payload + b"!"

    def in_thread(self, payload: bytes) -> bytes:
        self.kept.append(contextvars.copy_context())
        return payload + b"!"

    @batch(max_batch_size=4, batch_wait_timeout_s=0.001)
    async def batched(self, items: list[bytes]) -> list[bytes]:
        self.kept.append(contextvars.copy_context())
        return [item + b"!" for item in items]

    @batch(max_batch_size=4, batch_wait_timeout_s=0.001)
    def batched_in_thread(self, items: list[bytes]) -> list[bytes]:
        self.kept.append(contextvars.copy_context())
        return [item + b"!" for item in items]

    async def stream(self, payload: bytes) -> AsyncIterator[bytes]:
        self.kept.append(contextvars.copy_context())
        yield payload + b"!"

    def stream_in_thread(self, payload: bytes) -> Iterator[bytes]:
        self.kept.append(contextvars.copy_context())
        yield payload + b"!"


METHODS: Final = ("quick", "in_thread", "batched", "batched_in_thread", "stream", "stream_in_thread")


def references(payloads: Sequence[bytes]) -> list[int]:
    return [getrefcount(payload) for payload in payloads]


async def only_here(payloads: Sequence[bytes], wanted: list[int]) -> None:
    """Waits until the payloads have this number of references each: no other than those of the test."""
    await wait_until(lambda: references(payloads) == wanted, what="payloads that nothing keeps")


@pytest.mark.parametrize("asks", [False, True], ids=["quiet", "asks"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_context_that_is_left_behind_keeps_no_payload_of_its_frame(
    way: Way, method: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "is_known", asks)
    payloads = [b"payload %d" % number for number in range(COUNT)]
    before = references(payloads)
    async with hosting(KeepsContexts, own_loop=way.own_loop) as host:
        await way.execute(host, method, payloads, streaming=method.startswith("stream"))
        await host.until_idle()
        host.sent.clear()
        assert host.handler.kept
        await only_here(payloads, before)
        results = [*host.outbox.results_of.values()]
        results += [value for values in host.outbox.values_of.values() for value in values]
        assert len(results) == COUNT
        host.outbox.results_of.clear()
        host.outbox.values_of.clear()
        await only_here(results, references([b"one %d" % number for number in range(len(results))]))


@pytest.mark.parametrize("way", [UNKEYED, OWN_LOOP], ids=str)
async def test_a_context_that_is_left_behind_still_names_its_call(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "is_known", True)
    async with hosting(KeepsContexts, own_loop=way.own_loop) as host:
        await way.execute(host, "quick", [b"x"] * COUNT)
        await host.until_idle()
        found = {kept.run(slotmesh.context).call_id for kept in host.handler.kept}
        assert found == {str(run_id) for run_id in host.outbox.order}


async def test_calls_that_are_taken_back_leave_no_payload() -> None:
    payloads = [b"payload %d" % number for number in range(COUNT)]
    before = references(payloads)
    async with hosting(KeepsContexts, max_ongoing=1) as host:
        run = host.run("stream", payloads, streaming=True)
        host.engine.submit([run])
        host.engine.cancel(host.link, [(run.first + 3, run.first + 5), (run.first + 9, run.first + COUNT - 1)])
        await host.answered(COUNT)
        await host.until_idle()
        host.sent.clear()
        assert run.left == 0
        await only_here(payloads, before)
