"""The health of a handler: its `check_health` (`HandlerHealth`), and whether it blocks its event loop (`Blocking`).

Health checks: one at a time. A check that hangs counts as failed at its timeout, and again each period while it hangs;
no other check starts meanwhile. A check that passes resets the count of failures; `FAILURES` in a row make the handler
unhealthy for the rest of its life.

Blocking: a loop that does not respond is blocked, unless its thread did not get a processor. Time in which the thread
waits for a processor, or in which the watch itself could not run because the process was stopped, does not count,
except processor time that the thread used meanwhile. Each block is reported once, and its end once.

Owner: the shell: `upkeep.py` checks, `loop_watch.py` watches the loop in its own thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

FAILURES: Final = 3
"""Consecutive failed checks after which a handler is unhealthy."""
LOOKS: Final = 4
"""Samples within the time that a loop may be blocked."""
MIN_INTERVAL_S: Final = 0.02
LATE: Final = 1.5
"""In intervals: a sample counts at most this time; later than that, the watch itself was suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Period and timeout of the checks."""

    period_s: float
    """From the start of a check to the start of the next one."""
    timeout_s: float
    """The longest time that a check may take."""


class HealthCommand(Enum):
    """What the shell has to do."""

    START = "start"
    """Call `check_health`, and report its result by `answered`."""
    CANCEL = "cancel"
    """Cancel the check if possible: it takes too long."""
    GIVE_UP = "give up"
    """Report the handler as unhealthy."""


class HandlerHealth:
    """The checks of one handler."""

    def __init__(self, settings: HealthSettings, now: float) -> None:
        self.problem = ""
        """The failure of the latest check as text, a traceback if it raised; empty if it passed."""
        self.failures = 0
        """Consecutive failures."""
        self._settings = settings
        self._due = now + settings.period_s
        """When the next check starts, or the running one counts as failed (again)."""
        self._started = now
        self._is_running = False
        self._is_overdue = False

    @property
    def is_sick(self) -> bool:
        """Whether the handler is unhealthy. It is not checked any more."""
        return self.failures >= FAILURES

    def next_deadline(self) -> float | None:
        """Returns when `passed` is to be called next; None: never."""
        return None if self.is_sick else self._due

    def configure(self, settings: HealthSettings) -> None:
        """Applies other settings from the next check on."""
        if not self._is_running:
            self._due += settings.period_s - self._settings.period_s
        self._settings = settings

    def passed(self, now: float) -> list[HealthCommand]:
        """Returns the commands that are due at this time."""
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
        """Handles the end of a check. `problem` states why it failed; empty if it passed."""
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


class Look(NamedTuple):
    """A sample of the loop's thread. Only differences between samples are meaningful."""

    now: float
    """Monotonic seconds."""
    cpu_s: float
    """Processor time of the thread, seconds."""
    queued_s: float
    """Seconds for which the thread was ready and had no processor; always 0 if unknown."""


class Blocking:
    """How long the loop has been blocked since the last probe was sent to it."""

    def __init__(self, after_s: float) -> None:
        """`after_s`: a loop that does not respond for longer is blocked."""
        self.interval_s = max(after_s / LOOKS, MIN_INTERVAL_S)
        """How often the watch should take a sample."""
        self._after_s = after_s
        self._last = Look(0.0, 0.0, 0.0)
        self._kept_s = 0.0
        self._is_reported = False

    def asked(self, look: Look) -> None:
        """Begins to count: the loop was probed, or it is idle and will respond."""
        self._last = look
        self._kept_s = 0.0
        self._is_reported = False

    def silent(self, look: Look) -> float | None:
        """Counts a sample without a response. Returns the duration once it is too long; afterwards None."""
        self._count(look)
        if self._is_reported or self._kept_s < self._after_s:
            return None
        self._is_reported = True
        return self._kept_s

    def answered(self, look: Look) -> float | None:
        """Counts the sample of the response. Returns the duration of the block if it was reported."""
        self._count(look)
        return self._kept_s if self._is_reported else None

    def _count(self, look: Look) -> None:
        last, self._last = self._last, look
        seen_s = min(look.now - last.now, LATE * self.interval_s)
        self._kept_s += max(seen_s - (look.queued_s - last.queued_s), look.cpu_s - last.cpu_s, 0.0)
