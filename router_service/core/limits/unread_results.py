"""Bounds the results that the clients of a router have not read, over all of its streams.

Purpose: each stream holds the results that its client has not read; hundreds of clients that do not read would hold
hundreds of times that. Clients that read are not slowed down: for the others, results stay at the replicas.
Invariants: the queued bytes are bounded. Above the bound, or above a quarter of it if many streams have results queued,
streams that have read nothing for `STUCK_S` drop results that replicas keep, largest streams first; above the bound
they drop results that no replica keeps as well. If that is not enough for many streams, the brake is on for at most
`BRAKE_S`: calls that would produce more results are not started. Above the bound, all other streams drop results that
replicas keep, too. Bytes being written cannot be dropped: the more of them there are, the smaller the next frame. Below
the bounds nothing is dropped.
Owner: one object for all streams of the router. Pure; `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
BRAKE_SHARE: Final = 4
"""Above `1 / BRAKE_SHARE` of what may be queued, stuck streams drop results, and the brake is on."""
BRAKE_STREAMS: Final = 8
"""Fewer streams that have something queued are bounded one by one, and take what replicas give them without a pause."""
MAX_LEAVING_BYTES: Final = 4 * 1024 * 1024
"""Frames that are being written are in memory twice: as bytes, and in the transport."""
FRAMES: Final = 4
"""One frame takes at most `1 / FRAMES` of the bytes that are left: a single client gets frames of full size."""
MIN_FRAME_BYTES: Final = 16 * 1024
"""Every frame may have this size."""
CALL_BYTES: Final = 64
"""What an outcome takes besides its payload."""
STUCK_S: Final = 0.25
BRAKE_S: Final = STUCK_S
"""A stream that has read nothing for this long is stuck."""
AGAIN_S: Final = 0.1
"""Where streams have not dropped enough, they are asked again after this time, or after an eighth of the bound more."""


class Holder(Protocol):
    """One stream. Compared by identity."""

    @property
    def stuck_since(self) -> float:
        """When the frame left that its client has not read yet; infinite where there is none."""

    def shed(self, *, is_stuck: bool) -> None:
        """Drops results that can be had again, and also those that cannot where the client is stuck."""


class Unread:
    """Bytes by stream."""

    def __init__(
        self,
        now: Callable[[], float],
        max_bytes: int = MAX_QUEUED_BYTES,
        brake: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`max_bytes` of results may be queued.

        `brake` is called with whether calls that would bring more results must not start. `release` has to be called
        `BRAKE_S` later.
        """
        self.queued = 0
        self.leaving = 0
        """Bytes of frames that are being written."""
        self.is_braked = False
        self.brakes = 0
        """How often the brake was put on."""
        self._now = now
        self._max_bytes = max_bytes
        self._brake_bytes = max_bytes // BRAKE_SHARE
        self._brake = brake
        self._queued_by: dict[Holder, int] = {}
        self._again_at = 0.0
        self._again_bytes = 0

    @property
    def frame_bytes(self) -> int:
        """What the next frame may take."""
        return max(MIN_FRAME_BYTES, (MAX_LEAVING_BYTES - self.leaving) // FRAMES)

    def queue(self, holder: Holder, size: int) -> None:
        """Adds `size` queued bytes to the stream; negative to remove some."""
        if queued := self._queued_by.get(holder, 0) + size:
            self._queued_by[holder] = queued
        else:
            self._queued_by.pop(holder, None)
        self.queued += size
        if size > 0 and self.queued > self._brake_bytes:
            now = self._now()
            if now >= self._again_at or self.queued >= self._again_bytes:
                self._make_room(now)

    def written(self) -> None:
        """A stream has written what it had."""
        if self.is_braked and self.queued <= self._brake_bytes // 2:
            self.release()

    def release(self) -> None:
        """The brake was on for long enough."""
        if self.is_braked:
            self.is_braked = False
            self._brake(False)

    def left(self, holder: Holder) -> None:
        """The stream has ended, and what it had queued is gone."""
        self.queued -= self._queued_by.pop(holder, 0)

    def _make_room(self, now: float) -> None:
        are_many = len(self._queued_by) >= BRAKE_STREAMS
        bound = self._brake_bytes if are_many else self._max_bytes
        if self.queued <= bound:
            return
        by_size = sorted(self._queued_by, key=self._queued_by.__getitem__, reverse=True)
        for holder in by_size:
            if self.queued <= bound:
                return
            if holder.stuck_since + STUCK_S <= now:
                holder.shed(is_stuck=self.queued > self._max_bytes)
        for holder in by_size:
            if self.queued <= self._max_bytes:
                break
            holder.shed(is_stuck=False)
        self._again_at = now + AGAIN_S
        self._again_bytes = self.queued + self._max_bytes // 8
        if self.queued <= self._max_bytes:
            self._again_bytes = min(self._again_bytes, self._max_bytes + 1)
        if are_many and not self.is_braked:
            self.is_braked = True
            self.brakes += 1
            self._brake(True)
