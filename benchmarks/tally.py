"""The outcomes of one stream's calls, and how long refusals took. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Ids are 1, 2, … in the order of sending."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """By reason."""
    without_delay: int = 0
    """Refusals, counted by frame entries, that do not say when to come again."""
    refusals_s: array[float] = field(default_factory=lambda: array("d"))
    """From the start of writing a frame until each refusal of calls of it was read."""
    answered_in: Counter[int] = field(default_factory=Counter)
    """By whole seconds of the clock that `now` is of."""
    _outcomes: bytearray = field(default_factory=lambda: bytearray(1))
    _frames: list[int] = field(default_factory=list)
    _sent_at: list[float] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self._outcomes) - 1

    @property
    def open(self) -> int:
        """Calls without an outcome, if none has two."""
        return self.sent - self.answered - self.failed.total()

    @property
    def wrong(self) -> int:
        """Calls with no outcome, or with more than one."""
        return self.sent - self._outcomes.count(1, 1)

    def sending(self, ids: range, now: float) -> None:
        """A frame with these calls is about to be written."""
        self._frames.append(ids.start)
        self._sent_at.append(now)
        self._outcomes += bytes(len(ids))

    def results(self, ids: Sequence[int], now: float) -> None:
        """Calls were answered."""
        self.answered += len(ids)
        self.answered_in[int(now)] += len(ids)
        self._count(ids)

    def failure(self, ids: Sequence[int], reason: str, *, refused: bool, says_when: bool, now: float) -> None:
        """Calls failed, all of them in the same way."""
        self.failed[reason] += len(ids)
        self._count(ids)
        if refused:
            self.refusals_s.append(now - self._sent_at[bisect_right(self._frames, ids[0]) - 1])
            self.without_delay += not says_when

    def _count(self, ids: Sequence[int]) -> None:
        for call_id in ids:
            self._outcomes[call_id] = min(self._outcomes[call_id] + 1, 2)
