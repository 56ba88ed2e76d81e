"""Reports of a handler that blocks its event loop: the log, the metrics, a warning of the replica.

Invariants: the first time is reported at once, while the loop is still blocked; a handler that always blocks fills no
disk: it is logged at most every `LOG_GAP_S` for each method, with how many times were left out.
Owner: the loop watch calls it, in its thread; `warning` and the counters are read on the service's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from replica_service.shell.counters import ReplicaCounters
from slotmesh.telemetry.log import get_logger

LOG_GAP_S: Final = 10.0
WARNS_FOR_S: Final = 600.0
"""How long the replica warns after the last time."""
MAX_STACK_CHARS: Final = 8_000
"""How much of a stack is reported: its innermost part."""

_log = get_logger(__name__)


class BlockReports:
    """Reports on one loop."""

    def __init__(self, counters: ReplicaCounters, now: Callable[[], float], *, own_loop: bool) -> None:
        """`own_loop`: only the handler's own calls are held up."""
        self._counters = counters
        self._now = now
        self._held_up = "the handler's other calls wait" if own_loop else "everything else in this replica waits"
        self._method = ""
        self._stack = ""
        self._since = ""
        self._logged_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}
        self._is_logged = False
        """The time that goes on is in the log."""
        self._warning = ""
        self._warned_at = 0.0

    @property
    def warning(self) -> str:
        """The latest report, a line and a stack; empty where there was none for a while."""
        return self._warning if self._now() - self._warned_at < WARNS_FOR_S else ""

    def began(self, method: str, stack: str, kept_s: float) -> None:
        """A method, or something beside all methods where it is empty, has kept the loop for too long, and goes on."""
        now = self._now()
        self._method, self._stack = method, stack[-MAX_STACK_CHARS:]
        self._since = datetime.now(UTC).strftime("%H:%M:%S UTC")
        self._counters.blocks += 1
        self._warn(f"{self._who} blocks the event loop since {self._since}; {self._held_up}")
        self._is_logged = now - self._logged_at.get(method, -LOG_GAP_S) >= LOG_GAP_S
        if not self._is_logged:
            self._left_out[method] = self._left_out.get(method, 0) + 1
            return
        self._logged_at[method] = now
        _log.warning(
            "the event loop is blocked",
            by=self._who,
            blocked_s=round(kept_s, 3),
            meanwhile=self._held_up,
            left_out_before=self._left_out.pop(method, 0),
            stack=self._stack,
        )

    def ended(self, kept_s: float) -> None:
        """The handler no longer blocks the loop, which it had done for so long."""
        self._counters.blocked_s += kept_s
        times = self._counters.blocks
        how_often = "" if times == 1 else f"; {times} times so far"
        self._warn(f"{self._who} blocked the event loop for {kept_s:.1f} s at {self._since}{how_often}")
        if self._is_logged:
            _log.warning("the event loop goes on", by=self._who, blocked_s=round(kept_s, 3))

    @property
    def _who(self) -> str:
        return self._method or "code outside of the handler's methods"

    def _warn(self, line: str) -> None:
        self._warned_at = self._now()
        self._warning = f"{line}\n{self._stack}"
