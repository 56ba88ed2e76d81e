"""When a handler's `check_health` is called, and what its answers mean.

Invariants: one check at a time: one that hangs counts as failed when its time is over, and once more each period for as
long as it hangs; no other one starts meanwhile. A check that passes resets the count of failures; `FAILURES` in a row
make the handler unhealthy for the rest of its life.
Owner: the shell's health watch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

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
