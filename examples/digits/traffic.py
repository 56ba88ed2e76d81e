"""Sends images through ordered lanes and checks each reply against its own image.

Invariant: every image is sent at least once, and none of its replies is left out of the count.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import slotmesh
from examples.digits.data import Image


@dataclass(slots=True)
class TrafficTally:
    """What became of the calls."""

    asked: list[int]
    """How often each image was sent."""
    right: list[int]
    """How many of its replies were its label."""
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    """From making a call to its reply in its turn, for each call."""
    elapsed_s: float = 0.0

    @classmethod
    def of(cls, images: int) -> TrafficTally:
        """Nothing sent yet."""
        return cls([0] * images, [0] * images)

    @property
    def calls(self) -> int:
        return len(self.latencies_s)

    @property
    def accuracy(self) -> float:
        """The share of images whose replies were right: each image counts once, however often it was sent."""
        shares = [right / asked for right, asked in zip(self.right, self.asked, strict=True) if asked]
        return sum(shares) / len(shares) if shares else 0.0

    @property
    def unsteady(self) -> int:
        """Images that got different replies. The model knows no chance: these were answers to other images."""
        return sum(right not in {0, asked} for right, asked in zip(self.right, self.asked, strict=True))

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.elapsed_s if self.elapsed_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficLoad:
    """How much is sent at once, and for how long."""

    keys: int
    """Ordering keys; image i always goes with key i mod `keys`."""
    window: int
    """Calls in flight for each key."""
    seconds: float
    """After this no call is made, except for what is missing of the first pass."""


async def send(
    endpoint: slotmesh.Endpoint, images: Sequence[Image], labels: Sequence[int], load: TrafficLoad, tally: TrafficTally
) -> None:
    """Sends all images, again and again, each key in order; counts into `tally`.

    Raises:
        SlotmeshError: a call failed.
    """
    numbered = list(zip(range(len(images)), images, labels, strict=True))
    started = time.perf_counter()
    async with asyncio.TaskGroup() as lanes:
        for lane_no in range(load.keys):
            lane = endpoint.ordered(f"key-{lane_no}")
            mine = numbered[lane_no :: load.keys]
            lanes.create_task(_drive(lane, mine, load.window, started + load.seconds, tally))
    tally.elapsed_s = time.perf_counter() - started


async def _drive(
    lane: slotmesh.Lane, mine: Sequence[tuple[int, Image, int]], window: int, until: float, tally: TrafficTally
) -> None:
    """One key: keeps `window` calls in flight and takes the replies in the order of the calls."""
    classify: slotmesh.Method[int] = lane.method("classify")
    now = time.perf_counter
    pending: deque[tuple[int, int, float, asyncio.Future[int]]] = deque()

    async def settle() -> None:
        index, label, sent, reply = pending.popleft()
        digit = await reply
        tally.latencies_s.append(now() - sent)
        tally.asked[index] += 1
        tally.right[index] += digit == label

    first_pass = True
    while first_pass or now() < until:
        for index, image, label in mine:
            if len(pending) >= window:
                await settle()
            pending.append((index, label, now(), classify(image)))
        first_pass = False
    while pending:
        await settle()
