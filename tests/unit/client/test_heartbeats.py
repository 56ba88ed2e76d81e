"""When a session's stream sends heartbeats, when it rests, and how soon a dead router is found: on virtual time."""

from __future__ import annotations

from random import Random

import pytest

from simulation.mesh.loop import node_loop
from simulation.mesh.timeline import Timeline
from slotmesh.client.stream.heartbeats import BEAT_S, IDLE_BEATS, MAX_REST_S, SILENT_BEATS, Pulse

SILENCE_S = SILENT_BEATS * BEAT_S
HOUR_S = 3_600.0


class PulsingStream:
    """A pulse, and the router at its other end."""

    def __init__(self, *, allowed_rest_s: float) -> None:
        """`allowed_rest_s` 0: a router that announces nothing."""
        self.time = Timeline(seed=1)
        self.unanswered = 0
        self.router_lives = True
        self.heartbeats: list[float] = []
        """When each left."""
        self.silent_at: float | None = None
        self._loop = node_loop(self.time, "client", Random(1))
        self._allowed_rest_s = allowed_rest_s
        self._loop.call_soon(self._open)
        self.time.run(0.001)

    def _open(self) -> None:
        self.pulse = Pulse(self._write, self._fall_silent, awaits_answers=lambda: self.unanswered > 0)
        if self._allowed_rest_s:
            self.pulse.allow_rest(self._allowed_rest_s)

    def _write(self) -> None:
        while (frame := self.pulse.next_frame()) is not None:
            assert frame.HasField("heartbeat")
            self.heartbeats.append(self.time.now)
            if self.router_lives:
                self._loop.call_later(0.001, self._hear)

    def _hear(self) -> None:
        self.pulse.heard = True

    def _fall_silent(self) -> None:
        self.silent_at = self.time.now

    def _leave(self) -> None:
        if self.pulse.is_resting:
            self.pulse.rise()

    def pass_time(self, seconds: float) -> None:
        self.time.run(self.time.now + seconds)

    def call(self) -> None:
        """A call leaves, as `OutgoingFrames` sends it."""
        self.unanswered += 1
        self._loop.call_soon(self._leave)
        self.pass_time(0.001)


def test_an_idle_session_sends_a_heartbeat_each_allowed_interval() -> None:
    stream = PulsingStream(allowed_rest_s=30.0)
    stream.pass_time(HOUR_S)
    assert HOUR_S / 31 < len(stream.heartbeats) < HOUR_S / 24 + 5
    assert max(b - a for a, b in zip(stream.heartbeats, stream.heartbeats[1:], strict=False)) <= 31
    assert stream.silent_at is None


def test_a_router_of_an_older_version_gets_a_heartbeat_each_second() -> None:
    stream = PulsingStream(allowed_rest_s=0.0)
    stream.pass_time(60.0)
    assert len(stream.heartbeats) in (59, 60)


def test_a_session_with_an_unanswered_call_sends_one_each_second_whatever_is_allowed() -> None:
    stream = PulsingStream(allowed_rest_s=30.0)
    stream.call()
    stream.pass_time(60.0)
    assert len(stream.heartbeats) in (59, 60)


def test_no_interval_is_longer_than_the_client_s_own_bound() -> None:
    stream = PulsingStream(allowed_rest_s=1e9)
    stream.pass_time(HOUR_S)
    assert len(stream.heartbeats) >= HOUR_S / (MAX_REST_S + 1)


def test_rests_begin_two_seconds_after_the_last_answer() -> None:
    stream = PulsingStream(allowed_rest_s=30.0)
    stream.call()
    stream.pass_time(5.0)
    stream.unanswered = 0
    stream.pass_time(IDLE_BEATS * BEAT_S - BEAT_S)
    assert not stream.pulse.is_resting
    stream.pass_time(2 * BEAT_S)
    assert stream.pulse.is_resting


def test_sessions_that_begin_to_rest_together_do_not_beat_together() -> None:
    """Their chance is their own: after a router's end a thousand clients open their streams within one second."""
    nexts = set()
    for _ in range(8):
        stream = PulsingStream(allowed_rest_s=30.0)
        stream.pass_time(40.0)
        nexts.add(round(next(at for at in stream.heartbeats if at > 5), 3))
    assert len(nexts) > 1


@pytest.mark.parametrize("idle_s", [0.0, 1.0, 2.5, 7.0, 29.0, 300.0])
def test_a_router_that_died_during_idleness_is_found_four_seconds_after_the_first_call(idle_s: float) -> None:
    stream = PulsingStream(allowed_rest_s=60.0)
    stream.pass_time(5.0)
    stream.router_lives = False
    stream.pass_time(idle_s)
    if stream.silent_at is None:
        called_at = stream.time.now
        stream.call()
        assert stream.heartbeats[-1] >= called_at - 1.0, "a heartbeat left with the call, or within the second before"
        stream.pass_time(10.0)
        assert stream.silent_at is not None
        assert stream.silent_at - called_at <= SILENCE_S + 2 * BEAT_S


@pytest.mark.parametrize("died_s", [5.0, 5.2, 5.4, 5.6, 5.8])
def test_a_router_that_falls_silent_during_a_call_is_found_within_four_seconds(died_s: float) -> None:
    stream = PulsingStream(allowed_rest_s=60.0)
    stream.call()
    stream.pass_time(died_s)
    stream.router_lives = False
    died_at = stream.time.now
    stream.pass_time(10.0)
    assert stream.silent_at is not None
    assert 2.5 <= stream.silent_at - died_at <= 4.0


def test_a_router_that_lives_is_not_given_up_after_a_rest() -> None:
    stream = PulsingStream(allowed_rest_s=30.0)
    for _ in range(20):
        stream.pass_time(10.0)
        stream.call()
        stream.pass_time(0.01)
        stream.unanswered = 0
    assert stream.silent_at is None


def test_a_router_that_dies_during_a_rest_is_found_though_no_call_is_made() -> None:
    stream = PulsingStream(allowed_rest_s=30.0)
    stream.pass_time(5.0)
    stream.router_lives = False
    died_at = stream.time.now
    stream.pass_time(60.0)
    assert stream.silent_at is not None
    assert stream.silent_at - died_at <= 30 + SILENCE_S + 2 * BEAT_S


def test_a_pulse_that_was_stopped_neither_rises_nor_beats() -> None:
    stream = PulsingStream(allowed_rest_s=30.0)
    stream.pass_time(5.0)
    assert stream.pulse.is_resting
    stream.pulse.stop()
    sent = len(stream.heartbeats)
    stream.call()
    stream.pass_time(HOUR_S)
    assert len(stream.heartbeats) == sent
    assert stream.silent_at is None
