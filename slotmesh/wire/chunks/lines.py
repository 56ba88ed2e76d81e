"""What waits behind a large payload of its own call.

Purpose: a payload that leaves in chunks takes its time. All others pass it; but later items of its own call come after
it.
Invariants: items of one call leave in the order in which they came; of one call, one payload at a time is in chunks.
Calls without a large payload cost nothing here.
Owner: the writer of the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import Generic, TypeVar

EntryT = TypeVar("EntryT")


class Lines(Generic[EntryT]):
    """Calls with a large payload on its way, and what waits behind each. False while there are none."""

    __slots__ = ("by_call",)

    def __init__(self) -> None:
        self.by_call: dict[int, deque[EntryT]] = {}
        """To be read, by those who ask for each frame whether there are any: as cheap as can be."""

    def __bool__(self) -> bool:
        return bool(self.by_call)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self.by_call

    def begin(self, call_id: int) -> None:
        """A large payload of this call starts to leave; none does so far."""
        self.by_call[call_id] = deque()

    def wait(self, call_id: int, entry: EntryT) -> bool:
        """Adds the next item of the call. Returns whether it waits here."""
        line = self.by_call.get(call_id)
        if line is None:
            return False
        line.append(entry)
        return True

    def concern(self, call_ids: Iterable[int]) -> bool:
        """Whether one of these calls has a line."""
        return not self.by_call.keys().isdisjoint(call_ids)

    def among(self, call_ids: Container[int]) -> list[int]:
        """Those of these calls that have a line, in ascending order."""
        return sorted(call_id for call_id in self.by_call if call_id in call_ids)

    def end(self, call_id: int) -> deque[EntryT]:
        """The large payload of this call has left: what waited behind it, in order. That may begin a new line."""
        return self.by_call.pop(call_id)

    def clear(self) -> None:
        """Nothing is wanted any more."""
        self.by_call.clear()
