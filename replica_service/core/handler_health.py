"""When a handler's `check_health` is called, and what its answers mean.

Invariants: one check at a time: one that hangs counts as failed when its time is over, and once more each period for as
long as it hangs; no other one starts meanwhile. A check that passes resets the count of failures; `FAILURES` in a row
make the handler unhealthy for the rest of its life.
Owner: the shell's health watch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

FAILURES: Final = 3
"""Checks in a row that fail before a handler counts as sick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """How often, and how long."""

    period_s: float
    """From the start of a check to the start of the next one."""
    timeout_s: float
    """What a check may take."""


class HealthCommand(Enum):
    """What the shell is to do."""

    START = "start"
    """Call `check_health`, and pass on its answer."""
    CANCEL = "cancel"
    """The check takes too long: cancel it, where that can be done."""
    GIVE_UP = "give up"
    """The handler is sick."""


class HandlerHealth:
    """The checks of one handler."""

    def __init__(self, settings: HealthSettings, now: float) -> None:
        self.problem = ""
        """The failure of the latest check, as text: several lines where it raised. Empty where it passed."""
        self.failures = 0
        """In a row."""
        self._settings = settings
        self._due = now + settings.period_s
        """When the next check starts, or the one that runs counts as failed (again)."""
        self._started = now
        self._is_running = False
        self._is_overdue = False

    @property
    def is_sick(self) -> bool:
        """Nothing is asked any more."""
        return self.failures >= FAILURES

    def next_deadline(self) -> float | None:
        """When `passed` should be called next."""
        return None if self.is_sick else self._due

    def configure(self, settings: HealthSettings) -> None:
        """Other settings, from the next check on."""
        if not self._is_running:
            self._due += settings.period_s - self._settings.period_s
        self._settings = settings

    def passed(self, now: float) -> list[HealthCommand]:
        """Time has passed."""
        if self.is_sick or now < self._due:
            return []
        if not self._is_running:
            self._is_running, self._is_overdue = True, False
            self._started = now
            self._due = now + self._settings.timeout_s
            return [HealthCommand.START]
        commands = [] if self._is_overdue else [HealthCommand.CANCEL]
        self._is_overdue = True
        self._due = now + self._settings.period_s
        return commands + self._failed(f"check_health has not answered for {now - self._started:.3g} s")

    def answered(self, problem: str, now: float) -> list[HealthCommand]:
        """The check has ended; `problem` is why it failed, empty where it did not."""
        self._is_running = False
        self._due = max(now, self._started + self._settings.period_s)
        if self._is_overdue or self.is_sick:
            return []  # it has failed already
        if problem:
            return self._failed(problem)
        self.failures, self.problem = 0, ""
        return []

    def _failed(self, problem: str) -> list[HealthCommand]:
        self.failures += 1
        self.problem = problem
        return [HealthCommand.GIVE_UP] if self.is_sick else []


# Whether a handler blocks its event loop, judged by how long the loop takes to give a sign of life.
#
# Purpose: distinguishes a loop that is blocked from one whose thread did not get a processor.
# Invariants: what the machine does to the loop's thread does not count: while it waits for a processor, and while the
# watch could not look, as when the whole process was stopped, unless the thread has computed meanwhile. Each time that
# the loop is blocked for too long is reported once, and its end once.
# Owner: the loop watch, in its thread.

LOOKS: Final = 4
"""Looks within the time that a loop may be kept."""
MIN_INTERVAL_S: Final = 0.02
LATE: Final = 1.5
"""A look may be late by half its interval; time beyond that was not observed."""


class Look(NamedTuple):
    """What is to be seen of the loop's thread at one moment. Only differences mean something."""

    now: float
    """Monotonic seconds."""
    cpu_s: float
    """Seconds of a processor that the thread has had."""
    queued_s: float
    """Seconds for which the thread was ready and others had the processors; 0 throughout where that is unknown."""


class Blocking:
    """How long the loop has been kept, since a sign of life was asked for."""

    def __init__(self, after_s: float) -> None:
        """A loop that is kept for longer than `after_s` is blocked."""
        self.interval_s = max(after_s / LOOKS, MIN_INTERVAL_S)
        """How often the watch should look."""
        self._after_s = after_s
        self._last = Look(0.0, 0.0, 0.0)
        self._kept_s = 0.0
        self._is_told = False

    def asked(self, look: Look) -> None:
        """The loop was asked for a sign of life, or it is idle and will give it."""
        self._last = look
        self._kept_s = 0.0
        self._is_told = False

    def silent(self, look: Look) -> float | None:
        """It has given none yet. Returns for how long it has been kept when that is too long, once."""
        self._count(look)
        if self._is_told or self._kept_s < self._after_s:
            return None
        self._is_told = True
        return self._kept_s

    def answered(self, look: Look) -> float | None:
        """The loop gave a sign of life by this look. Returns for how long it was blocked, where that was reported."""
        self._count(look)
        return self._kept_s if self._is_told else None

    def _count(self, look: Look) -> None:
        last, self._last = self._last, look
        seen_s = min(look.now - last.now, LATE * self.interval_s)
        self._kept_s += max(seen_s - (look.queued_s - last.queued_s), look.cpu_s - last.cpu_s, 0.0)
