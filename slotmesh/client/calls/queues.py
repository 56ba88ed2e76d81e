"""The queues in which calls keep their order, and the turns in which they leave. Pure.

A queue has the calls of a lane, of a group of lanes, or of one method without a key.
Purpose: what waits in each queue, and how many of its calls have left without an outcome; which lanes may send in one
batch: those that differ only in their ordering key, a *group*; which lanes have stopped at a failure; whose waiting
calls the next frame takes, and how much of the window each tenant may fill.
Invariants: calls of one queue leave in the order in which they were made. Of one endpoint's client, specs that agree in
all but their ordering key have the same group. Queues of one tenant take turns among themselves, and tenants take
turns, so that however many calls one tenant has, those of another are next to leave, and the window has room for them.
What is passed over for one frame keeps its place. Calls without a tenant are those of one more. A tenant fills no more
of the window than it leaves free (`slotmesh/calls/fair_shares.py`).
Owner: the endpoint's `CallStream`, and its `CallOutbox` of the turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakSet, WeakValueDictionary

from slotmesh.calls.fair_shares import DynamicThreshold
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import MAX_STOP_GENERATIONS
from slotmesh.v1 import call_pb2

GAVE_UP: Final = Failure(reason=Reason.CANCELLED, message="taken back by its caller before it was sent")


class StopGenerations:
    """Which generations of lanes have failed in one session, as far as the client knows.

    Purpose: the mesh enforces the stop; the client does for calls that were not sent, and for calls that a new
    connection would send again, to a router that has not received the failure.
    Invariants: generations of a lane increase. A new generation is above all that have failed in the session, so that a
    lane object that was dropped for a while starts anew. Calls before the failed one are not affected.
    """

    __slots__ = ("newest_failed", "on_failure")

    def __init__(self, on_failure: Callable[[CallQueue[Any], int], None]) -> None:
        """`on_failure`: a call of this lane and generation that was sent has failed."""
        self.newest_failed = 0
        """Of all lanes."""
        self.on_failure = on_failure

    def stop_of(self, queue: CallQueue[Any], ordering_key: str) -> LaneStop:
        """The state of a lane: its own, or a new one."""
        if queue.stop is None:
            queue.stop = LaneStop(self, ordering_key)
        return queue.stop


class LaneStop:
    """Whether calls of one ordering key that stop at failures continue. Belongs to its lane's queue."""

    __slots__ = (
        *("_failed_ids", "_failure", "_generations", "_ordering_key"),
        *("failed", "generation", "methods"),
    )

    def __init__(self, generations: StopGenerations, ordering_key: str) -> None:
        self._generations = generations
        self._ordering_key = ordering_key
        self.generation = generations.newest_failed + 1
        """Of calls that are made now."""
        self.failed = 0
        """The newest generation that has failed."""
        self._failed_ids: dict[int, int] = {}
        """By generation, its first known call that was sent and failed: of the newest generations."""
        self._failure: Failure = GAVE_UP
        self.methods: WeakSet[Any] = WeakSet()
        """Methods of this lane, which follow when the next generation begins."""

    def reset(self) -> None:
        """Begins the next generation."""
        self.generation = max(self.generation, self._generations.newest_failed) + 1
        for method in list(self.methods):
            method.renew()

    def fail(self, queue: CallQueue[Any], generation: int, call_id: int, failure: Failure) -> None:
        """A call of the lane has failed; `queue` is the lane's.

        `call_id`: 0 if it was never sent. Then no call behind it was sent.
        """
        if generation > self.failed:
            self.failed, self._failure = generation, failure
            self._generations.newest_failed = max(self._generations.newest_failed, generation)
        elif generation == self.failed and (
            failure.executed is Executed.UNKNOWN and failure.reason is not Reason.PREDECESSOR_FAILED
        ):
            self._failure = failure
        if call_id:
            self._note(queue, generation, call_id)

    def _note(self, queue: CallQueue[Any], generation: int, call_id: int) -> None:
        before = self._failed_ids.get(generation)
        self._failed_ids[generation] = call_id if before is None else min(before, call_id)
        if before is None:
            if len(self._failed_ids) > MAX_STOP_GENERATIONS:
                del self._failed_ids[min(self._failed_ids)]  # its later calls are sent again
            self._generations.on_failure(queue, generation)

    def is_after_failure(self, generation: int, call_id: int) -> bool:
        """Whether a call that was sent comes after one that failed."""
        return any(generation <= failed and call_id > failed_id for failed, failed_id in self._failed_ids.items())

    def refusal(self, *, was_sent: bool = False) -> Failure:
        """The failure of calls behind the failed one.

        Those that were sent may have run: before the failure was known, or together with it in one batch.
        """
        refusal = Failure(
            reason=Reason.PREDECESSOR_FAILED,
            message=f"a call before it of the lane {self._ordering_key!r} failed "
            f"({self._failure.reason.value}: {self._failure.message}); lane.reset() lets the lane go on",
        )
        return replace(refusal, executed=Executed.UNKNOWN) if was_sent else refusal


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
        self.stop: LaneStop | None = None
        """Of a lane that has calls that stop at failures."""
        self.unanswered = 0
        """Calls that left or wait in a column, and have no outcome."""
        self._on_idle: list[Callable[[], object]] = []

    @property
    def idle(self) -> bool:
        """Whether every call has its outcome."""
        return not self.unanswered and not self.runs

    def call_when_idle(self, function: Callable[[], object]) -> None:
        """Calls `function` once, when every call has its outcome; now if they have."""
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


Queue = CallQueue[Any]


class TenantWindow(NamedTuple):
    """What one tenant has unanswered."""

    calls: int
    nbytes: int


NOTHING_HELD = TenantWindow(0, 0)
THRESHOLD: Final = DynamicThreshold()
"""Of what one tenant may have unanswered."""


class TenantShares:
    """How much each tenant may add to a window that has these calls and bytes left."""

    __slots__ = ("_calls", "_held", "_nbytes")

    def __init__(self, held: dict[str, TenantWindow], calls: int, nbytes: int) -> None:
        self._held = held
        self._calls = calls
        self._nbytes = nbytes

    def trim(self, tenant: str, sizes: list[int]) -> bool:
        """Cuts payload sizes of calls that may leave next down to those that the tenant may add, and counts these.

        A tenant that has nothing unanswered may have one call, whatever its size: the window decides about that.
        Returns False if the tenant may add none.
        """
        if not sizes:
            return True
        held = self._held.get(tenant, NOTHING_HELD)
        count = bisect_right(list(accumulate(sizes)), THRESHOLD.room(held.nbytes, self._nbytes))
        count = max(min(count, THRESHOLD.room(held.calls, self._calls)), 0 if held.calls else 1)
        if count <= 0:
            return False
        del sizes[count:]
        nbytes = sum(sizes)
        self._held[tenant] = TenantWindow(held.calls + count, held.nbytes + nbytes)
        self._calls -= count
        self._nbytes -= nbytes
        return True


class _Line:
    """The queues of one tenant."""

    __slots__ = ("queues", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.queues: deque[Queue] = deque()


class QueueTurns:
    """Queues with calls that wait. True while there is one."""

    __slots__ = ("_by_tenant", "_passed", "_passed_lines", "_plain", "has_tenants", "lines")

    def __init__(self) -> None:
        self.lines: deque[_Line] = deque()
        """To be read: the queues of each tenant, whose turn it is first. None is empty."""
        self._by_tenant: dict[str, _Line] = {}
        self._plain = _Line("")
        """Kept while it is empty, as it is the only one in most clients."""
        self._passed: list[Queue] = []
        self._passed_lines: list[_Line] = []
        self.has_tenants = False
        """Whether any call ever named a tenant."""

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __iter__(self) -> Iterator[Queue]:
        return (queue for line in self.lines for queue in line.queues)

    def every(self) -> list[Queue]:
        """All that have calls: columns before the queues that wait for them."""
        queues = list(self)
        for queue in queues:
            queues += (each for run in queue.runs for each in run.followers)
        return queues

    @property
    def first(self) -> Queue:
        """The one whose turn it is. Only while there is one."""
        return self.lines[0].queues[0]

    def append(self, queue: Queue) -> None:
        """The queue, which has calls, waits for its turn."""
        tenant = queue.runs[0].spec.tenant
        if tenant in self._by_tenant:
            self._by_tenant[tenant].queues.append(queue)
        elif tenant:
            self._add_line(queue).queues.append(queue)
        else:
            self._by_tenant[""] = line = self._plain
            line.queues.append(queue)
            self.lines.append(line)

    def extend(self, queues: Iterable[Queue]) -> None:
        """As `append`, for several."""
        for queue in queues:
            self.append(queue)

    def pop(self) -> None:
        """The first queue has had its turn, and with it its tenant."""
        line = self.lines.popleft()
        line.queues.popleft()
        if line.queues:
            self.lines.append(line)
        else:
            del self._by_tenant[line.tenant]

    def remove(self, queue: Queue) -> bool:
        """The queue has no more calls. Returns whether it was here."""
        for line in self.lines:
            if queue in line.queues:
                line.queues.remove(queue)
                if not line.queues:
                    self.lines.remove(line)
                    del self._by_tenant[line.tenant]
                return True
        return False

    def pass_over(self) -> None:
        """The first queue has no turn in this frame."""
        line = self.lines[0]
        self._passed.append(line.queues.popleft())
        if not line.queues:
            self.lines.popleft()
            del self._by_tenant[line.tenant]

    def pass_over_tenant(self) -> None:
        """Nor has any queue of the first tenant."""
        self._passed_lines.append(self.lines.popleft())

    def end_frame(self) -> None:
        """What was passed over is where it was."""
        if self._passed_lines:
            self.lines.extendleft(reversed(self._passed_lines))
            self._passed_lines.clear()
        while self._passed:
            queue = self._passed.pop()
            line = self._by_tenant.get(queue.runs[0].spec.tenant) or self._add_line(queue, first=True)
            line.queues.appendleft(queue)

    def _add_line(self, queue: Queue, *, first: bool = False) -> _Line:
        """A line for the tenant of this queue."""
        tenant = queue.runs[0].spec.tenant
        line = self._by_tenant[tenant] = _Line(tenant) if tenant else self._plain
        if first:
            self.lines.appendleft(line)
        else:
            self.lines.append(line)
        self.has_tenants = self.has_tenants or bool(tenant)
        return line
