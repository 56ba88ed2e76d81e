"""The queues in which calls keep their order: those of a lane, of a group of lanes, or of one method without a key.

Purpose: what waits in each queue, and how many of its calls have left without an outcome; which lanes may send in one
batch: those that differ in nothing but their ordering key, a *group*. Pure: what a queue holds is the outbox's affair.
Invariants: calls of one queue leave in the order in which they were made. Of one endpoint's client, specs that agree in
all but their ordering key have the same group.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from slotmesh.client.calls.lane_stops import LaneStop
from slotmesh.v1 import call_pb2

RunT = TypeVar("RunT")
"""A `WaitingRun`, which knows its queue."""


class CallQueue(Generic[RunT]):
    """Calls that keep their order: those of one ordering key, or of one unkeyed method."""

    __slots__ = ("__weakref__", "_on_idle", "column", "groups", "in_column", "runs", "stop", "tail", "unanswered")

    def __init__(self, groups: LaneGroups | None = None) -> None:
        """`groups`: those of the lanes beside this one; None for a queue that is no lane's."""
        self.groups = groups
        self.runs: deque[RunT] = deque()
        """What waits to be sent."""
        self.tail: RunT | None = None
        """The last of `runs`, while it is open for more calls."""
        self.column: RunT | None = None
        """The column that took calls of this queue last. They have left when it is empty."""
        self.in_column = 0
        """How many it took."""
        self.stop: LaneStop[Any] | None = None
        """Of a lane that has calls that stop at failures."""
        self.unanswered = 0
        """Calls that left or wait in a column, and have no outcome."""
        self._on_idle: list[Callable[[], object]] = []

    @property
    def idle(self) -> bool:
        """Whether every call has its outcome."""
        return not self.unanswered and not self.runs

    def call_when_idle(self, function: Callable[[], object]) -> None:
        """Calls `function` once, when every call has its outcome; at once where that is so."""
        self._on_idle.append(function)
        self.tell_if_idle()

    def settled(self, calls: int) -> None:
        """That many calls that had left have their outcome."""
        self.unanswered -= calls
        if self._on_idle:
            self.tell_if_idle()

    def tell_if_idle(self) -> None:
        """Calls the functions that wait for the queue to be idle."""
        if self._on_idle and self.idle:
            waiting, self._on_idle = self._on_idle, []
            for function in waiting:
                function()


class LaneGroup(CallQueue[Any]):
    """The queue in which lanes have their columns."""

    __slots__ = ("wire",)

    def __init__(self, wire: call_pb2.CallOptions) -> None:
        super().__init__()
        self.wire = wire
        """What the lanes share: options without an ordering key. Never changed."""


class LaneGroups:
    """Finds the group of a spec."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: WeakValueDictionary[tuple[bytes, Any], LaneGroup] = WeakValueDictionary()

    def of(self, wire: call_pb2.CallOptions, wanted: Any) -> LaneGroup:
        """The group of calls with these options and results of this type."""
        shared = call_pb2.CallOptions()
        shared.CopyFrom(wire)
        shared.ordering_key = ""
        key = (shared.SerializeToString(deterministic=True), wanted)
        try:
            group = self._groups.get(key)
        except TypeError:  # an annotation that has no hash: it is not shared
            return LaneGroup(shared)
        if group is None:
            group = self._groups[key] = LaneGroup(shared)
        return group
