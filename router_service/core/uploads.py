"""Calls whose payloads are still on their way here, in chunks.

Purpose: such a call keeps its place among those of its ordering key; all other calls pass it. A call begins when its
payload is complete.
Invariants: calls of one caller and ordering key begin in the order in which they came. A call that ends before, by its
deadline or because it was taken back, keeps nobody waiting. Nothing here outlives the caller.
Owner: the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core.held import Held
from slotmesh.chunks import Announced

if TYPE_CHECKING:
    from router_service.core.callers import Caller
    from router_service.core.calls import Run
    from slotmesh.chunks import Payload


class Line:
    """What one caller has that waits."""

    __slots__ = ("held", "incomplete")

    def __init__(self) -> None:
        self.held: Held[Run] = Held()
        self.incomplete: dict[int, Run] = {}
        """By call id."""


class Uploads:
    """The payloads under way."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: dict[Caller, Line] = {}
        """Of callers that bring any; empty while nobody does."""

    def take(self, run: Run) -> bool:
        """Keeps the run, if it waits for its payload (then it is one call), or behind one of its key that does."""
        line = self.lines.get(run.caller)
        key = run.options.ordering_key
        if not isinstance(run.payloads[0], Announced):
            return line is not None and line.held.add_behind(run, key)
        if line is None:
            line = self.lines[run.caller] = Line()
        line.held.add_incomplete(run, key)
        line.incomplete[run.ids[0]] = run
        return True

    def complete(self, caller: Caller, call_id: int, payload: Payload) -> list[Run]:
        """A payload is there: what can begin now, in order. Nothing where the call has ended."""
        line = self.lines.get(caller)
        run = line.incomplete.pop(call_id, None) if line is not None else None
        if line is None or run is None:
            return []
        if run.waiting:
            run.payloads = [payload]
        released = line.held.complete(run)
        self._drop_if_empty(caller, line)
        return [each for each in released if each.waiting]

    def release_ended(self) -> list[Run]:
        """What waited behind calls that have ended meanwhile, in order."""
        released: list[Run] = []
        for caller, line in list(self.lines.items()):
            for call_id, run in list(line.incomplete.items()):
                if not run.waiting:
                    del line.incomplete[call_id]
                    released += line.held.remove(run)
            self._drop_if_empty(caller, line)
        return [each for each in released if each.waiting]

    def left(self, caller: Caller) -> None:
        """The caller is gone."""
        self.lines.pop(caller, None)

    def find(self, caller: Caller, call_id: int) -> Run | None:
        """The call, if its payload is still awaited."""
        line = self.lines.get(caller)
        return line.incomplete.get(call_id) if line is not None else None

    def awaits(self, caller: Caller, call_id: int) -> bool:
        """Whether the call still wants its payload."""
        run = self.find(caller, call_id)
        return run is not None and run.waiting > 0

    def _drop_if_empty(self, caller: Caller, line: Line) -> None:
        if not line.incomplete:
            del self.lines[caller]
