"""One replica as the router sees it: what was sent to it, and what more it can take.

Purpose: the exact load that this router causes, the newest report of other routers' load, and the call of each run id.
Invariants: `own`, `keyed` and `bound` are the sums of the unanswered calls in `outbox`, `ops` and `inflight`, and
`work_ns` is the work that these calls were known to be when they were sent; run ids strictly increase on a link, in the
order in which frames carry them.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from router_service.core import balancers
from router_service.core.limits.capacity import QUICK_NS, KnownReplica, ReportedCapacity
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.routing_table import ReplicaRoute
from router_service.core.runs import Bound, RouterRun, Sent
from slotmesh.calls.id_ranges import Ledger


class RoutedReplica(KnownReplica):
    """One incarnation of a replica, and the slices that were sent to it."""

    __slots__ = ("_next_withdrawn", "backend", "has_failed", "has_link", "inflight", "link_users", "ops", "outbox")

    def __init__(self, route: ReplicaRoute, backend: RoutedBackend[RoutedReplica]) -> None:
        capacity = ReportedCapacity(max_ongoing=route.max_ongoing)
        super().__init__(route.key, route.address, backend.name, capacity, draining=route.draining)
        self.devices = route.devices
        self.backend = backend
        self.place(route.zone)
        self.has_link = False
        """The shell keeps a link to it, which may be established or be tried again."""
        self.has_failed = False
        """That link has failed, or broke, and has not been established since."""
        self.link_users = 0
        """Sessions that wait for its report, or whose calls were found there, and calls that only it may execute: while
        there are any, its link stays open."""
        self.ops: deque[Sent] = deque()
        """Slot operations that the next frames carry, ahead of `outbox`: each a slice of one call."""
        self.outbox: deque[Sent] = deque()
        """Slices that the next frames carry."""
        self.inflight: Ledger[Sent] = Ledger()
        """Slices with unanswered calls that a frame has carried, by first run id."""
        self._next_withdrawn = 0
        """Position of the slice behind the one withdrawn last: mostly that is the next one, and no search is needed."""

    def place(self, zone: str) -> None:
        """Where it runs; empty if that is unknown."""
        is_near = zone != "" and zone == self.backend.zone
        self.backend.near += (is_near - self.is_near) * self.taking
        self.zone, self.is_near = zone, is_near

    @property
    def has_unsent_runs(self) -> bool:
        """Whether slices wait for the next frames."""
        return bool(self.outbox)

    @property
    def has_unsent_ops(self) -> bool:
        """Whether slot operations wait for the next frames."""
        return bool(self.ops)

    @property
    def has_unanswered(self) -> bool:
        """Whether a frame has carried anything that it has not answered."""
        return bool(self.inflight)

    @property
    def lone_calls(self) -> int:
        """Calls of the only slice that waits for a frame, where nothing is unanswered; else 0."""
        outbox = self.outbox
        return outbox[0].count if len(outbox) == 1 and not self.inflight else 0

    def count_quick(self, most: int) -> int:
        """Quick calls that frames have carried here and that are not answered; more than `most` need not be counted."""
        calls = 0
        for sent in self.inflight.values():
            if sent.call_ns < QUICK_NS:
                calls += sent.remaining
                if calls >= most:
                    break
        return calls

    def send(self, run: RouterRun, count: int, owner_epoch: int, now: float, kind: type[Sent] = Sent) -> Sent:
        """Takes the next `count` waiting calls of the run into the outbox."""
        sent = kind(run, run.cursor, count, self, owner_epoch, now)
        run.cursor += count
        run.sents.append(sent)
        self.outbox.append(sent)
        self.work_ns += count * sent.call_ns
        if run.partition is None:
            self.own += count
        else:
            self.keyed += count
        return sent

    def reserve(self, run: RouterRun, now: float) -> Sent:
        """Adds a reservation to its slot operations."""
        sent = Sent(run, run.cursor, 1, self, 0, now)
        run.cursor += 1
        run.sents.append(sent)
        self.ops.append(sent)
        self.own += 1
        self.work_ns += sent.call_ns
        return sent

    def bind(self, run: RouterRun, now: float) -> Sent:
        """Adds a bound operation to its slot operations, where it waits until the link is up."""
        sent = Bound(run, run.cursor, 1, self, 0, now)
        run.cursor += 1
        run.sents.append(sent)
        self.ops.append(sent)
        self.bound += 1
        self.work_ns += sent.call_ns
        return sent

    def answer(self, sent: Sent, offset: int, count: int) -> list[tuple[int, int]]:
        """The replica has finished these calls of the slice; returns those that still wait for an outcome."""
        before = sent.remaining
        fresh = sent.take(offset, count)
        answered = before - sent.remaining
        self._gone(sent, answered)
        if not sent.remaining and answered:
            self.inflight.drop(sent)
            sent.run.sents.remove(sent)
        return fresh

    def answer_whole(self, sent: Sent) -> None:
        """The replica is done with a slice of which nothing was answered or abandoned before: the common case."""
        if sent.takes_room and sent.run.partition is None:
            self.own -= sent.count
            self.work_ns -= sent.count * sent.call_ns
        else:
            self._gone(sent, sent.count)
        sent.remaining = 0
        self.inflight.drop(sent)
        sent.run.sents.remove(sent)

    def withdraw(self, sent: Sent, parts: Sequence[Sent] = ()) -> None:
        """Withdraws the slice from the outbox; frames carry `parts` of it in its place."""
        box = self.outbox if sent.run.slot is None else self.ops
        place = self._next_withdrawn
        if place >= len(box) or box[place] is not sent:
            place = box.index(sent)
        self._next_withdrawn = place + len(parts)
        del box[place]
        for part in reversed(parts):
            box.insert(place, part)
        gone = sent.remaining - sum(part.count for part in parts)
        sent.run.sents.remove(sent)
        if self.backend.hooks is not None and balancers.is_counted(sent):
            balancers.abandoned(self.backend.hooks, self, gone)
        self._gone(sent, gone)
        sent.remaining = 0

    def take_back(self) -> list[Sent]:
        """Withdraws everything that no frame has carried; returns it, in order of sending."""
        unsent = [*self.ops, *self.outbox]
        self.ops.clear()
        self.outbox.clear()
        for sent in unsent:
            sent.run.sents.remove(sent)
            if balancers.is_counted(sent):
                balancers.abandoned(self.backend.hooks, self, sent.remaining)
            self._gone(sent, sent.remaining)
        return unsent

    def lose(self) -> list[Sent]:
        """The link broke: forgets and returns all that frames carried and is not answered, in order of sending."""
        lost = list(self.inflight.values())
        if self.backend.hooks is not None:
            gone = sum(sent.remaining for sent in lost if balancers.is_counted(sent))
            balancers.abandoned(self.backend.hooks, self, gone)
        self.inflight.reset()
        self.own = self.keyed = self.bound = self.work_ns = 0
        self.links += 1
        self.linked = False
        return lost

    def _gone(self, sent: Sent, count: int) -> None:
        """Subtracts `count` calls of the slice from the unanswered ones."""
        self.work_ns -= count * sent.call_ns
        if not sent.takes_room:
            self.bound -= count
        elif sent.run.partition is None:
            self.own -= count
        else:
            self.keyed -= count
