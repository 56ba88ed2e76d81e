"""A process that stands still when a call was found fit to start, and the handler's code has not begun: nothing starts.

The stop is a clock that jumps while the arguments are decoded, which is the last thing before the handler's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from replica_service.core.events import StampEchoed
from replica_service.core.runs import ReplicaRun
from slotmesh.codec import JSON
from slotmesh.handlers import batch, deployment
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio

FRESH_FOR_S = 1.0
STOPPED_S = 2.0


@deployment(max_ongoing=8)
class Handler:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def at_once(self, item: str) -> str:
        self.seen.append(item)
        return item

    async def waits(self, item: str) -> str:
        self.seen.append(item)
        await asyncio.sleep(0)
        return item

    def threaded(self, item: str) -> str:
        self.seen.append(item)
        return item

    @batch(max_batch_size=2)
    async def together(self, items: list[str]) -> list[str]:
        self.seen += items
        return items

    @batch(max_batch_size=2)
    def together_in_thread(self, items: list[str]) -> list[str]:
        self.seen += items
        return items

    async def yields(self, item: str) -> AsyncIterator[str]:
        self.seen.append(item)
        yield item

    def yields_in_thread(self, item: str) -> Iterator[str]:
        self.seen.append(item)
        yield item

    @batch(max_batch_size=2)
    async def yields_together(self, items: list[str]) -> AsyncIterator[list[str]]:
        self.seen += items
        yield items

    @batch(max_batch_size=2)
    def yields_together_in_thread(self, items: list[str]) -> Iterator[list[str]]:
        self.seen += items
        yield items


METHODS = [name for name in vars(Handler) if not name.startswith("_")]


class Columns:
    """Decodes the calls of batches, and lets a test look on."""

    def __init__(self, columns: Any, split: Any) -> None:
        self._columns = columns
        self.split = split

    def __getattr__(self, name: str) -> Any:
        return getattr(self._columns, name)


class Stop:
    """The clock jumps, once, when the arguments of so many calls have been decoded."""

    def __init__(self, host: Hosting, clock: FakeClock, after: int) -> None:
        self._clock, self._left = clock, after
        for method in host.engine.methods.values():
            method._decoder._decoders[JSON] = self._then(method._decoder.of(JSON))
            method.columns = Columns(method.columns, self._then(method.columns.split))  # type: ignore[assignment]

    def _then(self, decode: Any) -> Any:
        def decode_and_stop(*args: Any) -> Any:
            decoded = decode(*args)
            self._left -= 1
            if not self._left:
                self._clock.advance(STOPPED_S)
            return decoded

        return decode_and_stop


@pytest.mark.parametrize("own_loop", [False, True], ids=["one loop", "own loop"])
@pytest.mark.parametrize("key", ["", "k"], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("method", METHODS)
async def test_it_starts_nothing_then_and_all_later(method: str, after: int, key: str, own_loop: bool) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock=clock, own_loop=own_loop) as host:
        Stop(host, clock, after)
        host.link.fresh_until = clock.now() + FRESH_FOR_S
        payloads = [b'["1"]', b'["2"]', b'["3"]', b'["4"]']
        host.engine.submit([host.run(method, payloads, key=key, content_type=JSON)])
        await wait_until(lambda: host.link.parked and not host.engine.scheduler.in_use)
        calls_before = (after - 1) * (2 if "together" in method else 1)
        assert len(host.handler.seen) == calls_before
        host.engine.post(StampEchoed(host.link, clock.now()))
        await host.answered(4)
        assert sorted(host.handler.seen) == ["1", "2", "3", "4"]
        assert not key or host.handler.seen == ["1", "2", "3", "4"]
        assert not host.outbox.failures_of
        await asyncio.wait_for(host.engine.idle(), 5)


@pytest.mark.parametrize("own_loop", [False, True], ids=["one loop", "own loop"])
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("size", [10, 10_000])
@pytest.mark.parametrize("method", ["at_once", "waits"])
async def test_nor_do_neighbours_of_different_keys(method: str, size: int, after: int, own_loop: bool) -> None:
    """Which are executed one after another, as if they were one run."""
    clock = FakeClock()
    async with hosting(Handler, clock=clock, own_loop=own_loop) as host:
        Stop(host, clock, after)
        host.link.fresh_until = clock.now() + FRESH_FOR_S
        items = [str(number) * size for number in range(4)]
        whole = host.run(method, [f'["{item}"]'.encode() for item in items], content_type=JSON)
        host.engine.submit([neighbour(host, whole, index) for index in range(4)])
        await wait_until(lambda: host.link.parked and not host.engine.scheduler.in_use)
        assert len(host.handler.seen) == after - 1
        host.engine.post(StampEchoed(host.link, clock.now()))
        await host.answered(4)
        assert sorted(host.handler.seen) == items
        await asyncio.wait_for(host.engine.idle(), 5)


def neighbour(host: Hosting, whole: ReplicaRun, index: int) -> ReplicaRun:
    """One call of the run, with a key of its own."""
    run = ReplicaRun(
        *(host.link, whole.first, whole.payloads, whole.options, "e", whole.arrived, whole.deadline),
        begin=index,
        end=index + 1,
    )
    run.ordering_key = f"k{index}"
    return run
