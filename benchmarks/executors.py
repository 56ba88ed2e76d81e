"""What a replica's executors cost a call: each kind of method, its arguments and results, and no streams.

One engine in this process is given whole runs, and a stand-in for the outbox counts the outcomes. The processor time of
all threads counts, and the best round of each: what is measured is the code, and all that disturbs it makes it slower.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from math import inf
from typing import Any, Final

import slotmesh
from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.progress import show
from benchmarks.workloads import PAYLOAD
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun
from replica_service.shell.engine import Engine
from replica_service.shell.handler.binding import bind_methods
from slotmesh.codec import MSGPACK, OCTET_STREAM, encode_arguments
from slotmesh.handlers import describe
from slotmesh.runtime.clock import MonotonicClock

RUN_CALLS: Final = 256
_IN_FLIGHT: Final = 2


@slotmesh.deployment(max_ongoing=4096)
class Methods:
    """One of each kind, which does nothing."""

    async def quick(self, payload: bytes) -> bytes:
        return payload

    async def structured(self, number: int, text: str) -> dict[str, Any]:
        return {"number": number, "text": text}

    async def waits(self, payload: bytes) -> bytes:
        await asyncio.sleep(0)
        return payload

    def plain(self, payload: bytes) -> bytes:
        return payload

    @slotmesh.batch(max_batch_size=64, batch_wait_timeout_s=0.001)
    async def together(self, payloads: list[bytes]) -> list[bytes]:
        return payloads

    async def values(self, payload: bytes) -> AsyncIterator[bytes]:
        yield payload


SHAPES: Final[Sequence[tuple[str, str, str, int]]] = (
    ("quick", "async def, bytes", "quick", RUN_CALLS),
    ("single", "async def, bytes, runs of one call", "quick", 1),
    ("structured", "async def, msgpack", "structured", RUN_CALLS),
    ("waits", "async def that waits once", "waits", RUN_CALLS),
    ("plain", "def", "plain", RUN_CALLS),
    ("together", "async def in batches of 64", "together", RUN_CALLS),
    ("values", "async def that yields", "values", RUN_CALLS),
)
"""Name of the figure, title, method, calls of a run."""


class _Counting:
    """Stands in for the outbox of a link."""

    def __init__(self) -> None:
        self.left = 0
        self._most = 0
        self._has_ended = asyncio.Event()

    async def emptied(self, most: int) -> None:
        """Returns when at most so many calls have no outcome."""
        self._most = most
        while self.left > most:
            self._has_ended.clear()
            await self._has_ended.wait()

    def results(self, _first: int, payloads: Sequence[bytes], _size: int, _content_type: str) -> None:
        self._count(len(payloads))

    def done(self, _first: int, count: int) -> None:
        self._count(count)

    def values(self, _run_id: int, _payloads: Sequence[bytes], _size: int, _content_type: str) -> None: ...

    def tell_capacity(self) -> None: ...

    def discard(self) -> None: ...

    def _count(self, count: int) -> None:
        self.left -= count
        if self.left <= self._most:
            self._has_ended.set()


class ExecutorDrive:
    """An engine, and one link to it."""

    def __init__(self) -> None:
        handler = Methods()
        self._engine = Engine(
            bind_methods(handler, describe(Methods)), MonotonicClock(), max_ongoing=4096, prefetch=4096
        )
        self._link, _ = self._engine.open()
        self._link.fresh_until = inf  # no router sends heartbeats
        self._link.outbox = self._outbox = _Counting()
        self._next = 1

    async def cost_s(self, method: str, run_calls: int, calls: int) -> float:
        """Processor time of a call of the method."""
        content_type = MSGPACK if method == "structured" else OCTET_STREAM
        payload = encode_arguments(MSGPACK, (7, "text"), {}) if content_type == MSGPACK else PAYLOAD
        options = ReplicaCallOptions(
            method=method, content_type=content_type, ordering_key="", streaming=method == "values"
        )
        outbox = self._outbox
        began = time.process_time()
        for _ in range(calls // run_calls):
            await outbox.emptied(_IN_FLIGHT * RUN_CALLS)
            outbox.left += run_calls
            run = ReplicaRun(self._link, self._next, [payload] * run_calls, options, "e", 0.0, inf)
            self._next += run_calls
            self._engine.submit([run])
        await outbox.emptied(0)
        return (time.process_time() - began) / calls

    async def close(self) -> None:
        await self._engine.stop()


async def measure(*, rounds: int, calls: int) -> list[Finding]:
    """Takes about `rounds * calls * 200 µs`."""
    drive = ExecutorDrive()
    best: dict[str, float] = {}
    for number in range(rounds):
        show(f"executors: round {number + 1} of {rounds}")
        for name, _, method, run_calls in SHAPES:
            gc.collect()  # none pays for what another one left
            best[name] = min(best.get(name, inf), await drive.cost_s(method, run_calls, calls))
    show("")
    await drive.close()
    return [
        findings.figure(f"executors_{name}", f"a call's processor time, {title}", best[name], findings.microseconds)
        for name, title, _, _ in SHAPES
    ]
