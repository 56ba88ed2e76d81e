"""Whose waiting calls the next frame takes: queues in turn, by tenant; and how much of the window each tenant may fill.

Purpose: however many queues and calls one tenant has, those of another are next to leave, and the window has room for
them. Pure.
Invariants: queues of one tenant take turns among themselves, and tenants take turns. What is passed over for one frame
keeps its place. Calls without a tenant are those of one more.
A tenant fills no more of the window than it leaves free (`slotmesh/calls/fair_shares.py`).
Owner: the endpoint's `CallOutbox`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

from slotmesh.calls.fair_shares import DynamicThreshold
from slotmesh.client.calls.queues import CallQueue

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
