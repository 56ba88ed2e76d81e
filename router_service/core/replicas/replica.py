"""One replica as the router sees it: what was sent to it, and what more it can take.

Purpose: the exact load that this router causes, the newest report of other routers' load, and the call of each run id.
Invariants: `own`, `keyed` and `bound` are the sums of the unanswered calls in `outbox`, `ops` and `inflight`, and
`work_ns` is the work that these calls were known to be when they were sent; run ids strictly increase on a link, in the
order in which frames carry them.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from router_service.core import balancers
from router_service.core.limits.capacity import QUICK_NS, MethodTime, ReportedCapacity
from router_service.core.queueing.run_queues import RunQueue
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.routing_table import ReplicaRoute
from router_service.core.runs import Bound, RouterRun, Sent
from slotmesh.calls.id_ranges import Ledger
from slotmesh.calls.method_outlines import NO_TENSORS, MethodOutline, MethodTensors


class ReadyPartition(Protocol):
    """A partition with runs to send, as its owner uses it."""

    epoch: int
    listed: bool
    owner: RoutedReplica | None
    queue: RunQueue

    @property
    def sendable(self) -> bool:
        """Whether the head of the queue may be sent to the owner, without regard to room."""


class RoutedReplica:
    """One incarnation of a replica. Compared by identity."""

    __slots__ = (
        *("_next_withdrawn", "address", "backend", "bound", "capacity", "draining", "inflight"),
        *("is_awaited", "is_joining", "is_passed_over", "key", "keyed", "limit", "linked", "links", "listed", "ops"),
        *(
            "outbox",
            "outlines",
            "methods",
            "own",
            "ready",
            "retired",
            "stream_id",
            "taking",
            "tensors",
            "times",
            "work_ns",
        ),
    )

    def __init__(self, route: ReplicaRoute, backend: RoutedBackend[RoutedReplica]) -> None:
        self.key = route.key
        self.address = route.address
        self.backend = backend
        self.capacity = ReportedCapacity(max_ongoing=route.max_ongoing)
        self.draining = route.draining
        self.is_passed_over = False
        """It has lost contact with the controller, and others take calls: it gets no new unkeyed ones."""
        self.linked = False
        """The Execute stream is open and the replica has reported its capacity."""
        self.stream_id = ""
        """Unique id of the newest stream: together with a run id it names one call for all time."""
        self.methods: frozenset[str] = frozenset()
        """Names of the handler's methods that the replica reported."""
        self.outlines: tuple[MethodOutline, ...] = ()
        """Arguments and results of these methods, if reported."""
        self.tensors: Mapping[str, MethodTensors] = NO_TENSORS
        """Their tensors by method name, if reported."""
        self.links = 0
        """Links that were lost: run ids mean something on one link only."""
        self.listed = True
        """The routing table names it."""
        self.retired = False
        """The table no longer names the replica and all calls to it are answered: its link stays closed."""
        self.is_joining = False
        """Clients of sessions may not have acknowledged a roster with it yet: it gets no new calls."""
        self.is_awaited = False
        """The router's first table named it, and the link to it has neither opened nor failed."""
        self.taking = False
        """It is linked, and neither joins nor drains nor is passed over: counted among its backend's candidates."""
        self.limit = 0
        """Unkeyed calls of this router that the replica has room for in all; 0 while it takes none."""
        self.own = 0
        """This router's unkeyed calls and reservations there, unanswered."""
        self.keyed = 0
        """This router's keyed calls there, unanswered."""
        self.bound = 0
        """Unanswered operations in slots that it granted, which take no room."""
        self.work_ns = 0
        """Nanoseconds that its unanswered calls take one after another, by the service times that it has reported."""
        self.ops: deque[Sent] = deque()
        """Slot operations that the next frames carry, ahead of `outbox`: each a slice of one call."""
        self.outbox: deque[Sent] = deque()
        """Slices that the next frames carry."""
        self.inflight: Ledger[Sent] = Ledger()
        """Slices with unanswered calls that a frame has carried, by first run id."""
        self.times: Mapping[str, MethodTime] = {}
        """The service times that it has reported, by method."""
        self.ready: deque[ReadyPartition] = deque()
        """Partitions with runs to send here, in turn."""
        self._next_withdrawn = 0
        """Position of the slice behind the one withdrawn last: mostly that is the next one, and no search is needed."""

    @property
    def replica_id(self) -> str:
        """The identity that outlives incarnations."""
        return self.key[0]

    @property
    def free(self) -> int:
        """Unkeyed calls that it can take now, running or behind the running ones."""
        return self.limit - self.own

    @property
    def free_slots(self) -> int:
        """Unkeyed calls that it could start immediately."""
        return self.limit - self.own - self.capacity.prefetch

    @property
    def load(self) -> float:
        """Share of its permits in use; 1.0 is full."""
        capacity = self.capacity
        return (self.own + capacity.others) / capacity.max_ongoing

    @property
    def owed(self) -> int:
        """Unanswered calls and operations."""
        return self.own + self.keyed + self.bound

    @property
    def keyed_room(self) -> int:
        """Keyed calls that its window has room for."""
        return self.capacity.keyed_window - self.keyed if self.linked else 0

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

    def is_quick(self, method: str) -> bool:
        """Whether calls of this method are known to take little time here."""
        time = self.times.get(method)
        return time is not None and time.is_quick

    def count_quick(self, most: int) -> int:
        """Quick calls that frames have carried here and that are not answered; more than `most` need not be counted."""
        calls = 0
        for sent in self.inflight.values():
            if sent.call_ns < QUICK_NS:
                calls += sent.remaining
                if calls >= most:
                    break
        return calls

    def refresh(self) -> None:
        """Capacity, link, joining, draining or suspicion changed."""
        capacity = self.capacity
        self.taking = self.linked and not (self.draining or self.is_joining or self.is_passed_over)
        self.limit = capacity.max_ongoing + capacity.prefetch - capacity.others if self.taking else 0

    def send(self, run: RouterRun, count: int, owner_epoch: int, now: float) -> Sent:
        """Takes the next `count` waiting calls of the run into the outbox."""
        sent = Sent(run, run.cursor, count, self, owner_epoch, now)
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

    def part_of(self, sent: Sent, run: RouterRun) -> Sent:
        """A slice of the outbox has become smaller: what remains of it is all of `run`, and not in the outbox yet."""
        part = Sent(run, 0, len(run.payloads), self, sent.owner_epoch, sent.sent_at)
        run.cursor = part.count
        part.call_ns = sent.call_ns
        run.sents.append(part)
        if run.partition is not None:
            run.partition.sent(sent.owner_epoch)
        return part

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
