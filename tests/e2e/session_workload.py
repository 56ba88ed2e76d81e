"""The workload of the session tests: clients that call all the time, and write down their calls and outcomes.

8 clients; 32 ordering keys, 4 of each client, and 4 more that two clients share, which come through different routers
where there are two; and calls without a key beside them. Of each kind some are idempotent. Some unkeyed calls are
*hasty*: their deadline is short enough to pass during a fault; all others wait longer than any fault lasts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import slotmesh
from tests.history.log import HistoryLog
from tests.history.model import Call, Load, Outcome
from tests.support.wait import wait_until

CLIENTS: Final = 8
KEYS_EACH: Final = 4
SHARED_KEYS: Final = 4
BURST: Final = 4
"""Calls of a lane that are made at once."""
PATIENCE_S: Final = 30.0
HASTE_S: Final = 0.5
PACE_S: Final = 0.1
"""Between bursts of a lane, about: calls go on being made while none is answered, up to `UNANSWERED`."""
EASY_PACE_S: Final = 0.4
"""The same for tests, beside which others run: a quarter of the load leaves processes time to start."""
UNANSWERED: Final = 16
"""Calls of a lane that may be unanswered."""
VALUES: Final = 25
"""Of an iteration: it takes several times as long as a call."""
TICK_S: Final = 0.02
LOAD: Final = Load(clients=CLIENTS, outcomes_per_s=500)
"""What has to be reached before the first fault. A quiet machine does five times as many at the usual pace."""


def is_patient(call: Call) -> bool:
    """Whether its deadline lies beyond any fault."""
    return call.deadline is not None and call.deadline - call.sent_at > 10 * HASTE_S


class Stall(NamedTuple):
    """A time in which an event loop did not turn."""

    seconds: float
    on_cpu_s: float
    """Processor time of the process meanwhile: much less than the whole where others had the machine."""

    def __str__(self) -> str:
        return f"the clients' event loop stood still for {self.seconds:.3f} s, {self.on_cpu_s:.3f} s of it at work"


class Workload:
    """Clients at work. Made by `running_workload`."""

    def __init__(self, endpoint: str, log: HistoryLog, *, is_mixed: bool = False, pace_s: float = PACE_S) -> None:
        """`is_mixed`: with calls in slots, and iterations, in place of the hasty ones."""
        self._pace_s = pace_s
        self._endpoint = endpoint
        self._log = log
        self._is_mixed = is_mixed
        self._stop = asyncio.Event()
        self._sequences: dict[tuple[str, str], Iterator[int]] = {}
        self.results = dict.fromkeys((f"client-{number}" for number in range(CLIENTS)), 0)
        """By client."""
        self._unanswered: set[str] = set()
        self.stall = Stall(0.0, 0.0)
        """The worst one of the clients' own event loop."""

    async def wait_loaded(self) -> None:
        """Waits until the stated load has been there for a second or more, each client with its share."""
        each = 2 * LOAD.outcomes_per_s / CLIENTS
        began = time.monotonic()
        await wait_until(
            lambda: min(self.results.values()) >= each and time.monotonic() >= began + 1.0,
            timeout=60,
            what=f"{each} results for each client of {self.results}",
        )

    async def wait_for_progress(self, results: int = 50, timeout: float = 60.0) -> None:
        """Waits until each client has got so many more results."""
        before = dict(self.results)
        await wait_until(
            lambda: all(self.results[client] >= before[client] + results for client in before),
            timeout=timeout,
            what=f"{results} more results for each client, of {before}",
        )

    async def wait_answered(self, timeout: float = PATIENCE_S) -> None:
        """Waits until all calls that were made until now have outcomes: those that follow had not begun by then."""
        made = frozenset(self._unanswered)
        await wait_until(
            lambda: made.isdisjoint(self._unanswered), timeout=timeout, what=f"outcomes of {len(made)} calls"
        )

    async def watch_stalls(self) -> None:
        """Looks at the clients' event loop, for ever: while it stands still, what was heard late proves little."""
        while True:
            at, busy = time.monotonic(), time.process_time()
            await asyncio.sleep(TICK_S)
            stall = Stall(time.monotonic() - at - TICK_S, time.process_time() - busy)
            self.stall = max(self.stall, stall)

    def stop(self) -> None:
        """No more calls are made."""
        self._stop.set()

    async def run(self, number: int, mesh: slotmesh.Mesh) -> None:
        """One client, until it is stopped and has all its outcomes."""
        client = f"client-{number}"
        endpoint = mesh.endpoint(self._endpoint)
        own = [f"key-{number * KEYS_EACH + key}" for key in range(KEYS_EACH)]
        shared = f"shared-{number * SHARED_KEYS // CLIENTS}"
        async with asyncio.TaskGroup() as group:
            for key in [*own, shared, ""]:
                group.create_task(self._lane(client, endpoint, key, idempotent=key == own[-1]))
            group.create_task(self._lane(client, endpoint, "", idempotent=True))
            if not self._is_mixed:
                group.create_task(self._lane(client, endpoint, "", timeout_s=HASTE_S))
            else:
                group.create_task(self._one_by_one(client, partial(_in_a_slot, endpoint), "in a slot"))
                group.create_task(self._one_by_one(client, partial(_iterated, endpoint), "iterated"))

    async def _lane(
        self,
        client: str,
        endpoint: slotmesh.Endpoint,
        key: str,
        *,
        idempotent: bool = False,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        """Calls of one key, or without one, in bursts."""
        options = endpoint.options(timeout=timeout_s, idempotent=idempotent)
        view: Any = options.ordered(key) if key else options
        sequence = self._sequences.setdefault((client, key), count())
        unanswered: set[asyncio.Future[str]] = set()
        while not self._stop.is_set():
            calls = [
                Call(
                    tag=f"{client}/{key}/{number}",
                    client=client,
                    endpoint=self._endpoint,
                    key=key,
                    sequence=number,
                    idempotent=idempotent,
                    sent_at=(now := time.monotonic()),
                    deadline=now + timeout_s,
                )
                for number in (next(sequence) for _ in range(BURST))
            ]
            self._log.add(*calls)
            self._unanswered.update(call.tag for call in calls)
            for call in calls:
                answer = view.append(key, call.tag)
                unanswered.add(answer)
                answer.add_done_callback(partial(self._hear, call))
                answer.add_done_callback(unanswered.discard)
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._pace_s)
            while len(unanswered) > UNANSWERED - BURST:
                await asyncio.wait(unanswered, return_when=asyncio.FIRST_COMPLETED)
        if unanswered:
            await asyncio.wait(unanswered)

    async def _one_by_one(self, client: str, execute: Callable[[str], Awaitable[str]], kind: str) -> None:
        """Calls of another kind, each after the one before."""
        for number in count():
            if self._stop.is_set():
                return
            now = time.monotonic()
            tag = f"{client}/{kind}/{number}"
            call = Call(tag=tag, client=client, endpoint=self._endpoint, sent_at=now, deadline=now + PATIENCE_S)
            self._log.add(call)
            self._unanswered.add(tag)
            answer = asyncio.ensure_future(execute(tag))
            await asyncio.wait((answer,))
            self._hear(call, answer)
            await asyncio.sleep(self._pace_s / BURST)

    def _hear(self, call: Call, answer: asyncio.Future[str]) -> None:
        """Writes an outcome down, at once."""
        now = time.monotonic()
        self._unanswered.discard(call.tag)
        error = answer.exception()
        if error is None:
            self._log.add(Outcome(tag=call.tag, at=now, reply=answer.result()))
            self.results[call.client] += 1
        elif isinstance(error, slotmesh.SlotmeshError):
            executed = error.executed.name
            self._log.add(Outcome(tag=call.tag, at=now, reason=error.reason.value, executed=executed))
        else:
            raise error


async def _in_a_slot(endpoint: slotmesh.Endpoint, tag: str) -> str:
    async with endpoint.reserve(timeout=PATIENCE_S) as slot:
        reply = await slot.append("", tag)
    assert isinstance(reply, str)
    return reply


async def _iterated(endpoint: slotmesh.Endpoint, tag: str) -> str:
    values = [value async for value in endpoint.options(timeout=PATIENCE_S).spell.stream(tag, VALUES)]
    assert values == [tag] * VALUES
    return tag


@asynccontextmanager
async def running_workload(
    endpoint: str,
    addresses: Sequence[str],
    log: HistoryLog,
    *,
    is_mixed: bool = False,
    pace_s: float = PACE_S,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[Workload]:
    """Clients at work for as long as the block lasts; leaving it waits for all outcomes.

    `connect_timeout_s`: how long calls wait where no router can be reached, if their deadlines allow.
    """
    workload = Workload(endpoint, log, is_mixed=is_mixed, pace_s=pace_s)
    async with AsyncExitStack() as stack:
        meshes = []
        for number in range(CLIENTS):
            first = number % len(addresses)
            mesh = slotmesh.connect(
                ",".join([*addresses[first:], *addresses[:first]]), connect_timeout=connect_timeout_s
            )
            meshes.append(await stack.enter_async_context(mesh))
        clients = [asyncio.create_task(workload.run(number, mesh)) for number, mesh in enumerate(meshes)]
        watch = asyncio.create_task(workload.watch_stalls())
        try:
            yield workload
        finally:
            workload.stop()
            await asyncio.gather(*clients)
            watch.cancel()
