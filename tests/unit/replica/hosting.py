"""An engine with a handler and a router that records the answers."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from replica_service.convert.slots import Issuer, SlotAnswer
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.shell.engine import Engine
from replica_service.shell.handler.binding import bind_methods
from replica_service.shell.handler.handler_loop import OwnLoop, SharedLoop
from replica_service.shell.router_outbox import Outbox
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure
from slotmesh.handlers import describe
from slotmesh.runtime.clock import Clock, MonotonicClock
from tests.support.wait import wait_until


class RememberingOutbox:
    """Stands in for an outbox."""

    def __init__(self) -> None:
        self.issuer = Issuer(MonotonicClock(), replica_id="echo-1", backend="echo")
        self.results_of: dict[int, bytes] = {}
        self.failures_of: dict[int, Failure] = {}
        self.refusals_of: dict[int, Failure] = {}
        self.values_of: dict[int, list[bytes]] = {}
        self.slots_of: dict[int, SlotAnswer] = {}
        self.ended_well: set[int] = set()
        self.stopped_at: list[tuple[int, int]] = []
        """Run ids, first and last, at which lanes were said to have stopped."""
        self.order: list[int] = []
        self.deliveries: list[int] = []
        """Sizes of the lists in which results came."""
        self.capacity_told = 0
        self._thread = threading.get_ident()

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        assert size == sum(map(len, payloads))
        self.deliveries.append(len(payloads))
        for run_id, payload in enumerate(payloads, first):
            self._answer(run_id)
            self.results_of[run_id] = payload

    def values(self, run_id: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        assert size == sum(map(len, payloads))
        assert run_id not in self.order, f"values of {run_id} after its end"
        self.deliveries.append(len(payloads))
        self.values_of.setdefault(run_id, []).extend(payloads)

    def done(self, first: int, count: int) -> None:
        for run_id in range(first, first + count):
            self._answer(run_id)
            self.ended_well.add(run_id)

    def take_values(self, take: Callable[[list[int]], None]) -> None: ...

    def failed(self, first: int, count: int, failure: Failure) -> None:
        for run_id in range(first, first + count):
            self._answer(run_id)
            self.failures_of[run_id] = failure

    def refused(self, first: int, count: int, failure: Failure) -> None:
        for run_id in range(first, first + count):
            self._answer(run_id)
            self.refusals_of[run_id] = failure

    def slot_answer(self, op_id: int, answer: SlotAnswer) -> None:
        self._answer(op_id)
        self.slots_of[op_id] = answer

    def stopped(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.stopped_at += ranges

    def tell_capacity(self) -> None:
        self.capacity_told += 1

    def discard(self) -> None: ...

    def go_away(self, message: str) -> None: ...

    def _answer(self, run_id: int) -> None:
        assert run_id not in self.order, f"{run_id} was answered twice"
        assert threading.get_ident() == self._thread, f"{run_id} was answered by another thread"
        self.order.append(run_id)


def open_link(engine: Engine) -> tuple[RouterPeer, Outbox]:
    """The link of a router whose heartbeats are always fresh."""
    link, outbox = engine.open()
    link.fresh_until = inf
    return link, outbox


class Hosting:
    """Sends runs to the engine."""

    def __init__(self, engine: Engine, handler: Any, clock: Clock) -> None:
        self.engine = engine
        self.handler = handler
        self.clock = clock
        self.link, _ = open_link(engine)
        self.link.outbox = self.outbox = RememberingOutbox()
        self._next = 1
        self.sent: dict[int, list[bytes]] = {}
        """Of runs, by their first id. A run drops its own with its last call."""

    def run(
        self,
        method: str,
        payloads: Sequence[bytes],
        *,
        key: str = "",
        content_type: str = OCTET_STREAM,
        time_left_s: float = inf,
        link: RouterPeer | None = None,
        **options: Any,
    ) -> ReplicaRun:
        """A run under the next ids."""
        call_options = ReplicaCallOptions(method=method, content_type=content_type, ordering_key=key, **options)
        now = self.clock.now()
        made = ReplicaRun(link or self.link, self._next, list(payloads), call_options, "e", now, now + time_left_s)
        self._next += len(payloads)
        self.sent[made.first] = list(payloads)
        return made

    def payloads(self, run: ReplicaRun) -> list[bytes]:
        """What the run was sent with."""
        return self.sent[run.first]

    async def execute(self, *runs: ReplicaRun) -> RememberingOutbox:
        """Submits the runs, and waits for all of their outcomes."""
        wanted = len(self.outbox.order) + sum(run.end - run.begin for run in runs)
        self.engine.submit(runs)
        await self.answered(wanted)
        return self.outbox

    async def until_idle(self) -> None:
        """Waits until the replica has nothing left to do."""
        await wait_until(lambda: self.engine.scheduler.is_idle, what="an idle replica")

    async def answered(self, count: int) -> None:
        await wait_until(lambda: len(self.outbox.order) >= count, what=f"{count} outcomes")

    def results(self, run: ReplicaRun) -> list[bytes | None]:
        return [self.outbox.results_of.get(run.first + index) for index in range(run.end)]


@asynccontextmanager
async def hosting(
    handler: type | Callable[..., Any],
    *args: Any,
    clock: Clock | None = None,
    max_ongoing: int | None = None,
    prefetch: int | None = None,
    own_loop: bool = False,
) -> AsyncIterator[Hosting]:
    """The handler, hosted for as long as the block lasts. `own_loop`: its `async def` methods run in another thread."""
    description = describe(handler)
    constructed = handler(*args) if isinstance(handler, type) else handler
    clock = clock or MonotonicClock()
    handler_loop = OwnLoop() if own_loop else SharedLoop()
    engine = Engine(
        bind_methods(constructed, description),
        clock,
        max_ongoing=description.max_ongoing if max_ongoing is None else max_ongoing,
        prefetch=description.prefetch if prefetch is None else prefetch,
        handler_loop=handler_loop,
    )
    try:
        yield Hosting(engine, constructed, clock)
    finally:
        await engine.stop()
        await handler_loop.close()
