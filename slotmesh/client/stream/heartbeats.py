"""Heartbeats on a session's stream, acknowledgements of results, and the detection of a silent router.

Invariants: one timer a stream, none a call. Silence is counted in beats of the client's own loop: a program that
blocked its loop was not listening, and does not give up its router. Acks are sent at most once each `ACK_INTERVAL_S`. A
stream without unanswered calls rests if its router allows that: it sends a heartbeat at long intervals only. The first
call that leaves ends the rest together with a heartbeat, so a dead router is found as quickly after that call as after
any other.
Owner: the stream's `RouterLink`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from slotmesh.v1 import call_pb2, router_service_pb2

Request = router_service_pb2.StreamCallsRequest

BEAT_S: Final = 0.5
"""Between two looks at the stream."""
HEARTBEAT_BEATS: Final = 2
"""Beats from one heartbeat to the next."""
SILENT_BEATS: Final = 7
"""Beats without a frame after which the router is given up: 3.5 s, found within 4 s."""
IDLE_BEATS: Final = 4
"""Beats without unanswered calls after which the stream rests: 2 s."""
MAX_REST_S: Final = 120.0
"""The longest interval between heartbeats of a resting stream, whatever its router allows."""
ACK_INTERVAL_S: Final = 0.05
"""How long a result frame waits at most until it is acknowledged, together with later ones."""


class Pulse:
    """Runs from its creation until `stop`."""

    def __init__(
        self, wake: Callable[[], None], on_silence: Callable[[], None], *, awaits_answers: Callable[[], bool]
    ) -> None:
        """`wake` is called when `next_frame` has a frame, `on_silence` once.

        `awaits_answers`: whether calls are unanswered. While it is true, the stream does not rest.
        """
        self._wake = wake
        self._on_silence = on_silence
        self._awaits_answers = awaits_answers
        self._loop = asyncio.get_running_loop()
        self._beat_timer: asyncio.TimerHandle | None = self._loop.call_later(BEAT_S, self._beat)
        self._ack_timer: asyncio.TimerHandle | None = None
        self._beats = 0
        self._quiet_beats = 0
        self._idle_beats = 0
        self._rest_s = 0.0
        self.is_resting = False
        """No calls are unanswered, and the next heartbeat is far away."""
        self.is_due = False
        """`next_frame` may have a frame."""
        self._heartbeat_due = False
        self._ack_due = False
        self._delivered = 0
        self._acked = 0
        self._echo = 0
        self.heard = False
        """Set with each frame that comes."""

    def stop(self) -> None:
        """Sends and watches nothing more."""
        self.is_resting = False
        for timer in (self._beat_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()

    def allow_rest(self, interval_s: float) -> None:
        """Sets the interval of heartbeats while no calls are unanswered. 0: the router does not state one."""
        self._rest_s = min(interval_s, MAX_REST_S)

    def rise(self) -> None:
        """Ends a rest, because calls leave: a heartbeat leaves with them, and silence counts from now on."""
        self._idle_beats = 0
        self._rouse()

    def delivered(self, frame_no: int) -> None:
        """The results in this frame were delivered."""
        self._delivered = max(frame_no, self._delivered)
        if self._ack_timer is None and self._delivered > self._acked:
            self._ack_timer = self._loop.call_later(ACK_INTERVAL_S, self._on_ack_time)

    def beaten(self, heartbeat: call_pb2.Heartbeat) -> None:
        """The router's own heartbeat, whose timestamp is echoed with the next one here."""
        self._echo = max(heartbeat.stamp, self._echo)

    def flush(self) -> None:
        """The next frame acknowledges everything: the stream is about to end."""
        self.is_due = self._ack_due = True

    def next_frame(self) -> Request | None:
        """The frame that is due; None if none is."""
        if self._ack_due:
            self._ack_due = False
            if self._delivered > self._acked:
                self._acked = self._delivered
                return Request(ack=router_service_pb2.AckResults(through_frame=self._acked))
        if self._heartbeat_due:
            self._heartbeat_due = False
            return Request(heartbeat=call_pb2.Heartbeat(stamp=time.monotonic_ns(), echoed_stamp=self._echo))
        self.is_due = False
        return None

    def _on_ack_time(self) -> None:
        self._ack_timer = None
        self.is_due = self._ack_due = True
        self._wake()

    def _beat(self) -> None:
        self._beats += 1
        self._quiet_beats = 0 if self.heard else self._quiet_beats + 1
        self.heard = False
        if self._quiet_beats >= SILENT_BEATS:
            self._beat_timer = None
            self._on_silence()
            return
        self._idle_beats = 0 if self._awaits_answers() else self._idle_beats + 1
        if self._rest_s and self._idle_beats >= IDLE_BEATS and not self._quiet_beats:
            self._rest()
            return
        self._beat_timer = self._loop.call_later(BEAT_S, self._beat)
        if self._beats % HEARTBEAT_BEATS == 0:
            self._send_heartbeat()

    def _rest(self) -> None:
        self.is_resting = True
        # Clients that lost the same router have opened their streams together. They do not beat together.
        self._beat_timer = self._loop.call_later(self._rest_s * random.uniform(0.8, 1.0), self._rouse)  # noqa: S311 - spreads load

    def _rouse(self) -> None:
        """Resumes beating, with a heartbeat now. After `IDLE_BEATS` the stream rests once that is answered."""
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self.is_resting = self.heard = False
        self._beats = self._quiet_beats = 0
        self._beat_timer = self._loop.call_later(BEAT_S, self._beat)
        self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        self.is_due = self._heartbeat_due = True
        self._wake()
