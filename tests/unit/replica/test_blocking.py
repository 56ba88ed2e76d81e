"""A loop that is blocked, distinguished from one whose thread did not get a processor."""

from __future__ import annotations

import pytest

from replica_service.core.handler_health import LATE, LOOKS, Blocking, Look

AFTER_S = 0.5
LOOK_S = AFTER_S / LOOKS


class Thread:
    """What is to be seen of a loop's thread, as time passes."""

    def __init__(self, after_s: float = AFTER_S) -> None:
        self.blocking = Blocking(after_s)
        self.look = Look(100.0, 7.0, 3.0)
        self.blocking.asked(self.look)

    def passes(self, seconds: float, *, cpu_s: float = 0.0, queued_s: float = 0.0) -> float | None:
        """The loop is still silent after this time."""
        self._pass(seconds, cpu_s, queued_s)
        return self.blocking.silent(self.look)

    def answers(self, seconds: float) -> float | None:
        self._pass(seconds, 0.0, 0.0)
        return self.blocking.answered(self.look)

    def _pass(self, seconds: float, cpu_s: float, queued_s: float) -> None:
        now, cpu, queued = self.look
        self.look = Look(now + seconds, cpu + cpu_s, queued + queued_s)

    def until_told(self, seconds: float, looks: int = 1000, **used: float) -> int:
        """Looks, so long one after another, until the loop counts as blocked."""
        return next((look for look in range(1, looks + 1) if self.passes(seconds, **used)), 0)


def test_a_loop_that_sleeps_is_blocked_after_its_time_and_told_once() -> None:
    thread = Thread()
    assert [thread.passes(LOOK_S) for _ in range(LOOKS - 1)] == [None] * (LOOKS - 1)
    assert thread.passes(LOOK_S) == AFTER_S
    assert thread.passes(LOOK_S) is None
    assert thread.answers(0.0625) == AFTER_S + LOOK_S + 0.0625


def test_a_loop_that_answers_in_time_is_not_told_of() -> None:
    thread = Thread()
    assert thread.passes(LOOK_S) is None
    assert thread.answers(AFTER_S - LOOK_S) is None
    thread.blocking.asked(thread.look)
    assert thread.until_told(LOOK_S) == LOOKS


def test_a_loop_that_computes_is_blocked_also_where_nobody_could_look() -> None:
    """As one that holds the interpreter's lock: the look comes when it has let go of it."""
    assert Thread().passes(3.0, cpu_s=3.0) == 3.0


def test_a_process_that_was_stopped_is_not_blocked() -> None:
    thread = Thread()
    assert thread.passes(3600.0) is None
    assert thread.answers(0.0) is None
    thread = Thread()
    thread.passes(3600.0)
    assert thread.until_told(LOOK_S) == LOOKS - 1  # that one look counts as little as a late one may


def test_waiting_for_a_processor_does_not_count() -> None:
    assert not Thread().until_told(LOOK_S, looks=100, queued_s=LOOK_S)
    assert Thread().until_told(LOOK_S, queued_s=LOOK_S / 2) == 2 * LOOKS


def test_somebody_looks_often_enough() -> None:
    assert Blocking(AFTER_S).interval_s == LOOK_S
    assert Blocking(0.05).interval_s == pytest.approx(0.02)
    assert LATE * Blocking(10.0).interval_s < 10.0
