"""The audit log: refused requests and changes, as lines of a separate logger.

Purpose: `slotmesh.audit` can be stored apart from other logs, and longer.
Invariants: lines contain names, revisions and counts, never a payload, a token or a metadata value. Repeated denials of
one identity and method produce one line a second, with a count; each change has its own line. No `--log-level` hides
them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slotmesh.errors import Failure
from slotmesh.logs import AUDIT_LOGGER, get_logger
from slotmesh.security.identity import Identity, caller_name, current_rpc
from slotmesh.spec.rules import show

EVERY_S: Final = 1.0
"""The interval in which one identity and method get at most one line, in seconds."""
_KEPT: Final = 1024
"""The limit of pairs of identity and method with separate lines; further pairs share a line."""
_UNKNOWN: Final = "nobody"
_OTHERS: Final = ("others", "several")
_MISSING: Final = ("role", "endpoint", "backend")
"""Facts of a failure that name what the caller lacks."""

_log = get_logger(AUDIT_LOGGER)


@dataclass(slots=True)
class _Denials:
    """The denials of one identity and method."""

    logged_at: float
    suppressed: int = 0


class AuditLog:
    """Records what one process has refused and changed."""

    def __init__(self, now: Callable[[], float] = time.monotonic, every_s: float = EVERY_S) -> None:
        """`now`: a monotonic clock, in seconds."""
        self._now = now
        self._every_s = every_s
        self._lock = threading.Lock()
        self._denials: dict[tuple[str, str], _Denials] = {}

    def denied(self, identity: Identity | None, method: str, failure: Failure, peer: str = "", why: str = "") -> None:
        """Records a refusal. `method` is the rpc's full name; `identity` None: the caller is not authenticated.

        `why`: a reason that the caller does not get. On an event loop, a timer logs the count of suppressed lines. In
        another thread, the next line at least a second later does.
        """
        who, now = (_UNKNOWN if identity is None else identity.name), self._now()
        with self._lock:
            if (who, method) not in self._denials and len(self._denials) >= _KEPT:
                self._forget(now)
                if len(self._denials) >= _KEPT:
                    who, method = _OTHERS
            denials = self._denials.get((who, method))
            if denials is not None and now - denials.logged_at < self._every_s:
                denials.suppressed += 1
                if denials.suppressed == 1:
                    self._log_count_later(denials.logged_at + self._every_s - now, who, method, denials)
                return
            if denials is not None and denials.suppressed:
                self._log_count(who, method, denials)
            self._denials[who, method] = _Denials(now)
        facts = {name: show(failure.metadata[name]) for name in _MISSING if name in failure.metadata}
        facts |= {name: value for name, value in (("peer", peer), ("why", why)) if value}
        _log.warning("denied", who=who, method=method, reason=failure.reason.value, **facts)

    def changed(self, who: str, subject: str, before: int, after: int, *, method: str | None = None) -> None:
        """Records a change of `subject`, as `backend/digits`. The revisions are those before and after.

        With `method`, by `who` in that rpc. Without, by the running rpc or the process itself: then `who` is used only
        if the caller has no identity.
        """
        if method is None:
            who, method = caller_name() or who, current_rpc() or "none"
        _log.info("changed", who=who, method=method, object=subject, before=before, after=after)

    def _log_count_later(self, left_s: float, who: str, method: str, denials: _Denials) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(left_s, self._log_suppressed, who, method, denials)

    def _log_suppressed(self, who: str, method: str, denials: _Denials) -> None:
        with self._lock:
            if denials.suppressed:
                self._log_count(who, method, denials)

    def _log_count(self, who: str, method: str, denials: _Denials) -> None:
        count, denials.suppressed, denials.logged_at = denials.suppressed, 0, self._now()
        _log.warning("denied again", who=who, method=method, count=count)

    def _forget(self, now: float) -> None:
        """Drops entries without a recent denial."""
        for (who, method), denials in list(self._denials.items()):
            if now - denials.logged_at >= self._every_s:
                if denials.suppressed:
                    self._log_count(who, method, denials)
                del self._denials[who, method]


AUDIT: Final = AuditLog()
"""The audit log of this process."""
