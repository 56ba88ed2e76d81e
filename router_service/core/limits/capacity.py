"""The capacity that replicas report, and how many calls of a run travel together to one replica.

Purpose: one rule for new and for queued runs, for batch methods and for shadows. It weighs the cost of a slice against
its benefit:

- Each additional slice costs a message in both directions, `MESSAGES_S` of processor time regardless of its size, and
  its answer is a small frame, which leads to small frames from the client. Its benefit is that calls run in parallel.
- So a slice has `SLICE_S` of work: its messages cost half of that, and no call waits much longer than that behind
  others while another replica is idle. Calls that take `SLICE_S` or more travel one by one while there are replicas
  for all of them; hundreds of calls that take almost no time travel together.
- A run is cut into even slices of one to two times `SLICE_S`, but into no more slices than there are replicas to take
  them; larger runs are spread evenly.
- A batch method gets full batches while there are enough calls: half a batch costs as much as a full one.
- Quick calls join others: a replica with less than `SLICE_S` of work, all of it known to be quick, gets the next quick
  calls before an idle replica is woken, so that they share its messages.

A method without a reported service time does not count as quick: its runs are spread evenly.
Owner: pure functions. `ReportedCapacity` is made at the edge from each frame that carries one; the replica's state
keeps the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from router_service.core.rosters import ReplicaKey
from slotmesh.calls.handler_figures import NO_FIGURES
from slotmesh.calls.method_outlines import NO_TENSORS, MethodOutline, MethodTensors
from slotmesh.streams.pacing import MESSAGES_S, QUICK_S

DEFAULT_KEYED_WINDOW = 8192
"""The bound of unanswered keyed calls at a replica that has not reported its own."""


class ReportedCapacity(NamedTuple):
    """A replica's own report. Counts calls."""

    max_ongoing: int
    prefetch: int = 0
    others: int = 0
    """Room taken by anything but this router's unkeyed calls."""
    keyed_window: int = DEFAULT_KEYED_WINDOW
    draining: bool = False


SLICE_S = 2 * MESSAGES_S
"""Work that is worth a slice of its own: seconds that its calls take one after another."""
SLICE_NS = round(SLICE_S * 1e9)
QUICK_NS = round(QUICK_S * 1e9)
"""Calls that are less work than this are quick."""
UNKNOWN_NS = 10**9
"""Work of a call whose method has no reported service time: it does not count as quick."""
CALL_S = 1e-6
"""What a call in a frame costs beside its handler: no replica executes calls faster than that."""


@dataclass(frozen=True, slots=True)
class MethodTime:
    """The service time of a method, as a replica reports it."""

    service_s: float
    """Time of a call, seconds: where calls are executed one after another, what each takes of the handler."""
    batch_size: int = 0
    """Maximum number of calls that it takes together; 0 if it takes one at a time."""
    call_ns: int = field(init=False)
    """Work that one call is, nanoseconds: whole numbers, so that sums come out even."""
    is_quick: bool = field(init=False)
    """Calls are about to be answered once they were sent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "call_ns", round((self.service_s + CALL_S) * 1e9))
        object.__setattr__(self, "is_quick", self.call_ns < QUICK_NS)


def worth_calls(service_s: float) -> int:
    """Calls of this service time that are worth a slice."""
    return max(1, round(SLICE_S / (service_s + CALL_S)))


def slice_calls(calls: int, replicas: int, time: MethodTime | None) -> int:
    """How many of `calls` go to one replica at most, where `replicas` take calls; at least 1.

    `time`: what the replica has reported of the method. The caller bounds the slice by the replica's room as well.
    """
    slices = max(1, replicas)
    if time is not None:
        slices = max(1, min(slices, calls // worth_calls(time.service_s)))
    even = ceil(calls / slices)
    if time is not None and time.batch_size > 1:
        even = ceil(even / time.batch_size) * time.batch_size
    return min(even, calls)


def joins(work_ns: int, time: MethodTime | None) -> bool:
    """Whether a call goes where there is some work already: as long as it is quick, and there is less than a slice."""
    return time is not None and work_ns > 0 and work_ns + time.call_ns <= SLICE_NS


class KnownReplica:
    """What is known of one incarnation of a replica, and how loaded it is. Compared by identity.

    What slices refer to, and balancers choose by; `RoutedReplica` adds what was sent to it.
    """

    __slots__ = (
        *("address", "backend_name", "bound", "capacity", "draining", "is_awaited", "is_joining", "is_member"),
        *("figures", "load_s", "max_models", "models"),
        *(
            "is_near",
            "is_passed_over",
            "key",
            "keyed",
            "limit",
            "linked",
            "links",
            "listed",
            "methods",
            "outlines",
            "own",
            "rank",
            "retired",
            "stream_id",
        ),
        *("devices", "taking", "tensors", "times", "work_ns", "zone"),
    )

    def __init__(
        self, key: ReplicaKey, address: str, backend_name: str, capacity: ReportedCapacity, *, draining: bool
    ) -> None:
        self.key = key
        self.address = address
        self.backend_name = backend_name
        self.capacity = capacity
        self.draining = draining
        self.devices: tuple[str, ...] = ()
        """What it holds: `cuda=0`, or `cuda=0@0.5` for a share of a device."""
        self.zone = ""
        """Where it runs; empty if unknown."""
        self.is_near = False
        """That is the zone of this router."""
        self.is_passed_over = False
        """It has lost contact with the controller, and others take calls: it gets no new unkeyed ones."""
        self.is_member = True
        """It is in the subset of replicas that get unkeyed calls of this router."""
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
        self.rank: int | None = None
        """Among the live replicas of its backend, from 0; None: unknown."""
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
        """It is a linked member, and neither joins nor drains nor is passed over: a candidate of its backend."""
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
        self.times: Mapping[str, MethodTime] = {}
        """The service times that it has reported, by method."""
        self.figures: Mapping[str, float] = NO_FIGURES
        """What its handler has reported of itself, by name."""
        self.models: frozenset[str] = frozenset()
        """Ids of the models that its handler has loaded. Replaced whole."""
        self.max_models, self.load_s = 0, 0.0
        """The number of models that it keeps loaded at most, and the mean time of a load, as reported; 0: unknown."""

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

    def is_quick(self, method: str) -> bool:
        """Whether calls of this method are known to take little time here."""
        time = self.times.get(method)
        return time is not None and time.is_quick

    def refresh(self) -> None:
        """Capacity, link, joining, draining or suspicion changed."""
        capacity = self.capacity
        is_open = self.linked and self.is_member
        self.taking = is_open and not (self.draining or self.is_joining or self.is_passed_over)
        self.limit = capacity.max_ongoing + capacity.prefetch - capacity.others if self.taking else 0
