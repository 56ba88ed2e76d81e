"""The router's decisions: which replica runs which calls, and which outcome every caller gets.

Purpose: admission -> traffic policy -> queue -> balancer -> replica -> correlated reply, as `(event, now) -> commands`.
`events.py`, here and in the rooms, says what can happen, `handlers.py` which part handles it, `parts.py` how the parts
are put together. Of these `submissions` and `intake` are the way in, `sender` the way out, `answers` the way back;
`conclusions` is what follows from each event.
Invariants, checked by tests/properties/test_router_scheduler.py:
  1. Each submitted call gets exactly one outcome (a result or a failure), whatever happens.
  2. Calls of one ordering key are sent in order of arrival, and to a new owner only after the old one has answered.
  3. A replica never has more unkeyed calls than its reported capacity, nor more keyed ones than its window.
  4. Nothing waits while a replica of its backend could take it, unless the brake is on.
  5. A slot that is granted to a caller who no longer waits is released at once.
Owner: the dispatcher, on one event loop. No clock, no I/O: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from router_service.core.commands import RouterCommand
from router_service.core.events import RouterEvent
from router_service.core.handlers import handlers_of
from router_service.core.parts import Parts
from router_service.core.replicas import frames
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.sampling import Chance
from router_service.core.routing.table import RoutingTable
from router_service.core.runs import CallerBook
from router_service.core.slots import frames as slot_frames
from router_service.core.slots.frames import OutgoingOp
from router_service.core.tapping.open_calls import OpenCallsFilter, OpenCallsScan
from router_service.core.tenants.book import DEFAULT_TENANTS, TenantSettings
from router_service.core.uploads.uploads import MAX_UPLOAD_BYTES


class RouterScheduler:
    """State of one router's data plane; single writer, never awaited inside.

    Events come in by `step`. A link that can write takes its next frame by `cut_frame` and `cut_ops`. All else only
    reads.
    """

    def __init__(
        self, chance: Chance, *, max_upload_bytes: int = MAX_UPLOAD_BYTES, tenants: TenantSettings = DEFAULT_TENANTS
    ) -> None:
        """`chance` draws uniformly from [0, 1): the only randomness.

        `max_upload_bytes`: of payloads that are under way in chunks, and of what waits behind them. `tenants`: how many
        are told apart.
        """
        self._parts = parts = Parts(chance, max_upload_bytes, tenants)
        self._handlers = handlers_of(parts).by_class
        self._commands = parts.conclusions.commands
        self._timers = parts.timers
        self._outcomes = parts.outcomes
        self.counters = parts.counters
        """To be read, by metrics."""
        self.tenants = parts.tenants
        """To be read: which tenants call most."""
        self.topology = parts.topology
        """To be read: what the table in force names, and how loaded it is."""

    def step(self, event: RouterEvent, now: float) -> list[RouterCommand]:
        """Something has happened: returns what is to be done, in order."""
        self._outcomes.now = now
        self._handlers[type(event)](event, now)
        return self._commands(now)

    # -- what links take ---------------------------------------------------------------------------------------------

    def cut_frame(self, replica: RoutedReplica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
        """What the next frame to the replica carries; empty when there is nothing.

        Where `next_deadline` has come, a step with `RouterTimePassed` goes before.
        """
        return frames.cut_frame(replica, max_calls, max_bytes) if replica.outbox else []

    def cut_ops(self, replica: RoutedReplica, max_bytes: int) -> list[OutgoingOp]:
        """What the next frame of slot operations carries; it goes ahead of runs. As `cut_frame` otherwise."""
        return slot_frames.cut_ops(replica, max_bytes)

    # -- what is known -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the shell must step with `RouterTimePassed`; None when nothing can expire."""
        return self._timers.next_deadline()

    @property
    def table(self) -> RoutingTable:
        """The table in force; its revision is 0 before there is one."""
        return self.topology.table

    def scan_calls(self, wanted: OpenCallsFilter, callers: Iterable[CallerBook]) -> OpenCallsScan:
        """A look at the calls that have not ended, of these callers, which are all that there are."""
        return OpenCallsScan(wanted, self.topology, callers)

    @property
    def shadows_under_way(self) -> int:
        """Sampled copies at replicas."""
        return self._parts.intake.copies
