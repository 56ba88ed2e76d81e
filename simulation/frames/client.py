"""A client that keeps a number of calls in flight, or makes them at random times, and how long they took."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from simulation.frames.machine import Process
from simulation.frames.pump import Pump

if TYPE_CHECKING:
    from random import Random

    from simulation.frames.machine import Machine, Then
    from simulation.frames.settings import FramesSettings
    from simulation.kernel import Kernel


class FramesClient:
    """Its ids count up from 1."""

    def __init__(self, kernel: Kernel, machine: Machine, settings: FramesSettings, draws: Random) -> None:
        """`draws`: what the times between its calls are drawn from, where it makes them at a rate."""
        self.process = Process(machine)
        self.submit: Callable[[range], None] = lambda _: None
        """Takes a frame of calls: what connects it to a router."""
        self._kernel = kernel
        self._costs = settings.costs
        self._rate = settings.rate
        self._draws = draws
        self._first_frames = () if settings.rate else settings.first_frames or (settings.in_flight,)
        self._waiting = 0
        self._unanswered = 0
        self._next_id = 1
        self.made_at = array("d", [0.0])
        """By id."""
        self.latencies_s = array("d")
        """In order of the answers."""
        self.outbox: Pump[range] = Pump(
            kernel, self.process, lambda: (self._waiting, self._unanswered, False), self._cut, self._send
        )

    def begin(self) -> None:
        """Sends the first frames, as they are; or makes the first call."""
        if self._rate:
            self._plan()
        for size in self._first_frames:
            self.made_at.extend([0.0] * size)
        self._unanswered = sum(self._first_frames)
        self._next_id += self._unanswered
        for stop, size in zip(accumulate(self._first_frames), self._first_frames, strict=True):
            self._send(range(stop - size + 1, stop + 1))

    def answered(self, ids: list[int]) -> None:
        """A frame of results arrives."""
        self.process.do(lambda: self._take(ids))

    def _take(self, ids: list[int]) -> tuple[float, Then]:
        return self._costs.message_s + len(ids) * self._costs.client_s, lambda: self._make_more(ids)

    def _make_more(self, ids: list[int]) -> None:
        now, made_at = self._kernel.now, self.made_at
        self.latencies_s.extend([now - made_at[each] for each in ids])
        self._unanswered -= len(ids)
        if not self._rate:
            self._make(len(ids))

    def _make(self, count: int) -> None:
        self.made_at.extend([self._kernel.now] * count)
        self._waiting += count
        self.outbox.wake()

    def _plan(self) -> None:
        self._kernel.at(self._kernel.now + self._draws.expovariate(self._rate), self._make_one, None)

    def _make_one(self, _: None) -> None:
        self._make(1)
        self._plan()

    def _cut(self, most: int) -> tuple[range, float]:
        count = min(self._waiting, most)
        self._waiting -= count
        self._unanswered += count
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        return ids, self._costs.message_s + count * self._costs.client_s

    def _send(self, ids: range) -> None:
        self._kernel.at(self._kernel.now + self._costs.travel_s, self.submit, ids)
