"""Twice as many calls as the slots can serve, for a while: what is answered, what is refused, what it costs.

The handler sleeps, so slots are the limit. First the most that is ever answered a second is sought, with more and more
calls in flight; then several clients offer twice that, a frame every 10 ms, whatever comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from benchmarks import findings
from benchmarks.findings import Finding
from benchmarks.frames import FrameStream, frame_stream
from benchmarks.processes import ServerProcess, process_mesh
from benchmarks.progress import show
from benchmarks.statistics import percentile
from benchmarks.tally import Tally
from benchmarks.workloads import METHOD, PAYLOAD
from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.v1 import call_pb2

NAME: Final = "nap"
NAP_S: Final = 0.05
REPLICAS: Final = 2
SLOTS: Final = 64
"""Of each replica."""
CLIENTS: Final = 4
OVERLOAD: Final = 2.0
LEAST_GOODPUT: Final = 0.9
MOST_GROWTH_BYTES: Final = 100e6
MOST_REFUSAL_S: Final = 0.010
_EVERY_S: Final = 0.01
_IN_FLIGHT: Final = (1.0, 1.5, 2.0, 4.0)
"""Calls in flight for each slot while the peak is sought."""
_SETTLE_TIMEOUT_S: Final = 30.0
"""A queue that holds 20,000 calls is worked off in a third of it; what has no outcome then gets none."""

_now = time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadOutcome:
    """What came of it."""

    peak: float
    """Most answers a second, at any number of calls in flight."""
    goodput: float
    """Answers a second under overload."""
    worst_second: float
    """Answers in the worst whole second."""
    offered: int
    """Calls sent under overload."""
    answered: int
    failed: Counter[str]
    """By reason."""
    wrong: int
    """Calls with no outcome, or with two, of all that were sent."""
    without_delay: int
    """Refusals that do not say when to come again."""
    refusals_s: list[float]
    """From writing a frame until the refusal was read, ascending."""
    growth_bytes: int
    """Of the router's memory, at its highest."""
    late_growth_bytes: int
    """The same in the second half."""


def mesh_spec(max_queued_calls: int) -> Mesh:
    """Slots for `REPLICAS * SLOTS / NAP_S` calls a second."""
    nap = Backend(
        name=NAME,
        handler="benchmarks.handler:Nap",
        num_replicas=REPLICAS,
        max_ongoing=SLOTS,
        user_config={"seconds": NAP_S},
        max_queued_calls=max_queued_calls,
    )
    return Mesh(backends=(nap,), endpoints=(Endpoint(name=NAME, traffic=TrafficPolicy(weights={NAME: 1.0})),))


async def measure(*, seconds: float, max_queued_calls: int, timeout_s: float | None = None) -> list[Finding]:
    """`timeout_s`: what every call may take in all."""
    outcome = await overload(seconds=seconds, max_queued_calls=max_queued_calls, timeout_s=timeout_s)
    refused = outcome.failed.total() / outcome.offered
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in outcome.failed.most_common()) or "none"
    found = [
        findings.figure("overload_peak", "most answers a second", outcome.peak, findings.rate),
        findings.at_least(
            "overload_goodput",
            f"answers at {OVERLOAD:g} times that for {seconds:g} s / the most",
            outcome.goodput / outcome.peak,
            LEAST_GOODPUT,
            findings.ratio,
        ),
        findings.figure(
            "overload_worst_second", "the same in the worst second", outcome.worst_second / outcome.peak, findings.ratio
        ),
        findings.figure("overload_failed", f"share of calls that failed ({reasons})", refused, findings.share),
        findings.at_most("overload_wrong", "calls without exactly one outcome", outcome.wrong, 0, findings.count),
        findings.at_most(
            "overload_memory",
            "growth of the router's memory",
            outcome.growth_bytes,
            MOST_GROWTH_BYTES,
            findings.megabytes,
        ),
        findings.figure(
            "overload_late_memory", "of it in the second half", outcome.late_growth_bytes, findings.megabytes
        ),
    ]
    if outcome.refusals_s:
        found += [
            findings.figure(
                "overload_refusal_p50",
                "refusal, from writing the frame to reading it, p50",
                percentile(outcome.refusals_s, 50),
                findings.milliseconds,
            ),
            findings.at_most(
                "overload_refusal_p99",
                "the same, p99",
                percentile(outcome.refusals_s, 99),
                MOST_REFUSAL_S,
                findings.milliseconds,
            ),
        ]
    return found


async def overload(
    *, seconds: float, max_queued_calls: int, seek_s: float = 3.0, timeout_s: float | None = None
) -> OverloadOutcome:
    """Seeks the peak, `seek_s` for each number of calls in flight, then offers twice as much for `seconds`."""
    async with process_mesh(mesh_spec(max_queued_calls)) as mesh:
        router = mesh.routers[0]
        peak = 0.0
        for calls_a_slot in _IN_FLIGHT:
            show(f"overload: {calls_a_slot:g} calls in flight a slot")
            async with _clients(router, None) as clients:
                in_flight = round(REPLICAS * SLOTS * calls_a_slot) // CLIENTS
                peak = max(peak, await _closed_loop(clients, in_flight, seek_s))
        async with _clients(router, timeout_s) as clients:
            outcome = await _open_loop(clients, router, peak, seconds)
    show("")
    return outcome


class _Client:
    """A stream whose answers are counted as they come."""

    def __init__(self, stream: FrameStream) -> None:
        self.tally = Tally()
        self._stream = stream
        self._heard = asyncio.Event()

    async def send(self, calls: int) -> None:
        first = self._stream.next_id
        self.tally.sending(range(first, first + calls), _now())
        await self._stream.send([PAYLOAD] * calls)

    async def listen(self) -> None:
        """Until the stream ends."""
        while (response := await self._stream.read()) is not None:
            now = _now()
            match response.WhichOneof("frame"):
                case "results":
                    for batch in response.results.batches:
                        self.tally.results(ids_of_results(batch), now)
                    for errors in response.results.errors:
                        self._failed(ids_from_wire(errors.calls), errors.failure, now)
                case "rejected":
                    first = response.rejected.first_call_id
                    self._failed(range(first, first + response.rejected.count), response.rejected.failure, now)
                case _:
                    pass
            self._heard.set()

    def _failed(self, ids: Sequence[int], failure: call_pb2.Failure, now: float) -> None:
        refused = failure.reason in {"QUEUE_FULL", "WINDOW_EXCEEDED"}
        says_when = failure.HasField("retry_delay") and failure.retry_delay.ToNanoseconds() > 0
        self.tally.failure(ids, failure.reason, refused=refused, says_when=says_when, now=now)

    async def keep(self, in_flight: int, until: float) -> None:
        """Closed loop: whatever is answered is replaced."""
        while _now() < until:
            self._heard.clear()
            if missing := in_flight - self.tally.open:
                await self.send(missing)
            await self._heard.wait()

    async def offer(self, calls_per_s: float, until: float) -> None:
        """Open loop: what a stall kept back is made up for."""
        started = _now()
        while (now := _now()) < until:
            due = int((now - started) * calls_per_s) - self.tally.sent
            if due > 0:
                await self.send(due)
            await asyncio.sleep(_EVERY_S)

    async def settled(self) -> None:
        """Returns when every call has an outcome."""
        while self.tally.open:
            self._heard.clear()
            await self._heard.wait()


@asynccontextmanager
async def _clients(router: ServerProcess, timeout_s: float | None) -> AsyncIterator[list[_Client]]:
    """Each with a connection of its own."""
    options: dict[str, Any] = {} if timeout_s is None else {"timeout": timedelta(seconds=timeout_s)}
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(CLIENTS):
            channel = await stack.enter_async_context(open_channel(router.address))
            clients.append(_Client(await stack.enter_async_context(frame_stream(channel, NAME, METHOD, **options))))
        listening = [asyncio.ensure_future(client.listen()) for client in clients]
        try:
            yield clients
        finally:
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)


async def _closed_loop(clients: list[_Client], in_flight: int, seconds: float) -> float:
    """Answers a second, after the slots have filled."""
    until = _now() + seconds + 2 * NAP_S
    keeping = asyncio.gather(*(client.keep(in_flight, until) for client in clients))
    await asyncio.sleep(2 * NAP_S)
    before, since = _answered(clients), _now()
    await keeping
    rate = (_answered(clients) - before) / (_now() - since)
    await _settle(clients)
    if lost := sum(client.tally.open for client in clients):
        raise AssertionError(f"{lost} calls have no outcome, without any overload")
    return rate


async def _open_loop(clients: list[_Client], router: ServerProcess, peak: float, seconds: float) -> OverloadOutcome:
    memory = [router.rss_bytes()]
    started = _now()
    until = started + seconds
    offering = asyncio.gather(*(client.offer(OVERLOAD * peak / CLIENTS, until) for client in clients))
    await asyncio.sleep(2 * NAP_S)
    before, since = _answered(clients), _now()
    while not offering.done():
        await asyncio.wait((offering,), timeout=0.25)
        memory.append(router.rss_bytes())
        show(f"overload: {_now() - started:.0f} of {seconds:g} s, router's memory {memory[-1] / 1e6:.0f} MB")
    await offering
    goodput = (_answered(clients) - before) / (_now() - since)
    answered_in: Counter[int] = Counter()
    for client in clients:
        answered_in.update(client.tally.answered_in)
    whole = range(int(started) + 2, int(_now()))
    await _settle(clients)
    tallies = [client.tally for client in clients]
    return OverloadOutcome(
        peak=peak,
        goodput=goodput,
        worst_second=min((answered_in[second] for second in whole), default=goodput),
        offered=sum(tally.sent for tally in tallies),
        answered=sum(tally.answered for tally in tallies),
        failed=sum((tally.failed for tally in tallies), Counter()),
        wrong=sum(tally.wrong for tally in tallies),
        without_delay=sum(tally.without_delay for tally in tallies),
        refusals_s=sorted(delay_s for tally in tallies for delay_s in tally.refusals_s),
        growth_bytes=max(memory) - memory[0],
        late_growth_bytes=max(memory) - max(memory[: max(1, len(memory) // 2)]),
    )


async def _settle(clients: list[_Client]) -> None:
    """Returns when every call has an outcome, or when it is time to give up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_TIMEOUT_S):
            await asyncio.gather(*(client.settled() for client in clients))


def _answered(clients: list[_Client]) -> int:
    return sum(client.tally.answered for client in clients)
