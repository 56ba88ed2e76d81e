"""What happens at replicas, and to the links to them.

Owner: the link to the replica makes them, the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router_service.core.calls import Failures, Results
from router_service.core.events import RouterEvent
from router_service.core.replicas.capacity import ReportedCapacity
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.replicas.slicing import MethodTime
from slotmesh.errors import Failure
from slotmesh.oip.signatures import NO_TENSORS, MethodTensors
from slotmesh.wire.outlines import MethodOutline


@dataclass(slots=True, eq=False)
class LinkOpened(RouterEvent):
    """The replica is connected and has reported its capacity."""

    replica: RoutedReplica
    capacity: ReportedCapacity
    stream_id: str = ""
    """Of the stream to the replica; no other stream has the same."""
    methods: Sequence[str] = ()
    """Names of the handler's methods, as far as the replica says them."""
    outlines: Sequence[MethodOutline] = ()
    """What these take and give, as far as it says that."""
    tensors: Mapping[str, MethodTensors] = field(default_factory=lambda: NO_TENSORS)
    """What they take and give as tensors, by name, as far as the replica says it."""


@dataclass(slots=True, eq=False)
class LinkLost(RouterEvent):
    """The connection broke: what a frame has carried and is not answered may have been executed."""

    replica: RoutedReplica
    why: str


@dataclass(slots=True, eq=False)
class LinkFailed(RouterEvent):
    """The replica's link broke, or could not be made: what follows is when it is tried again."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class CapacityReported(RouterEvent):
    """The replica's load changed without a result."""

    replica: RoutedReplica
    capacity: ReportedCapacity


@dataclass(slots=True, eq=False)
class ServiceTimesReported(RouterEvent):
    """The replica reported how long the calls of its methods take. It concerns calls that are sent from now on."""

    replica: RoutedReplica
    times: Mapping[str, MethodTime]
    """By method."""


@dataclass(slots=True, eq=False)
class DrainAnnounced(RouterEvent):
    """The replica takes no more runs; what it has is answered or handed back."""

    replica: RoutedReplica


@dataclass(slots=True, eq=False)
class RunsCompleted(RouterEvent):
    """A result frame came: calls that ended, and the replica's load after them."""

    replica: RoutedReplica
    results: Iterable[Results]
    failed: Sequence[Failures]
    capacity: ReportedCapacity | None
    """None where the replica does not report it."""
    done: list[int] | None = None
    """Run ids of calls that ended without a result of their own."""
    values: Iterable[Results] | None = None
    """Of calls that go on, or end in this frame."""


@dataclass(slots=True, eq=False)
class RunsRefused(RouterEvent):
    """The replica did not take these calls; nothing of them was executed."""

    replica: RoutedReplica
    ids: list[int]
    """Run ids."""
    failure: Failure
    capacity: ReportedCapacity


@dataclass(slots=True, eq=False)
class LanesStopped(RouterEvent):
    """Nothing starts behind these calls of lanes that stop at failures: they have failed for their callers."""

    replica: RoutedReplica
    ranges: Iterable[tuple[int, int]]
    """Run ids from first to last, both included."""
