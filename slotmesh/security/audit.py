"""The audit log: who was refused what, and who has changed what, as lines of a logger of its own.

Purpose: `slotmesh.audit` can be kept apart from other logs, and kept for longer.
Invariants: names, revisions and counts only: never a payload, a token or a value of metadata. Who is refused again and
again gets one line a second for each method, with a count; a change gets a line each. No `--log-level` hides them.
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
"""Of one identity and method there is at most one line in this time, seconds."""
_KEPT: Final = 1024
"""Identities and methods that are told apart; those beyond them share a line."""
_NOBODY: Final = "nobody"
_OTHERS: Final = ("others", "several")
_MISSING: Final = ("role", "endpoint", "backend")
"""Of the facts of a failure, those that say what the caller lacks."""

_log = get_logger(AUDIT_LOGGER)


@dataclass(slots=True)
class _Denials:
    """Of one identity and method."""

    said_at: float
    unsaid: int = 0


class AuditLog:
    """What one process has refused and changed."""

    def __init__(self, now: Callable[[], float] = time.monotonic, every_s: float = EVERY_S) -> None:
        """`now`: seconds of a clock that never goes back."""
        self._now = now
        self._every_s = every_s
        self._lock = threading.Lock()
        self._denials: dict[tuple[str, str], _Denials] = {}

    def denied(self, identity: Identity | None, method: str, failure: Failure, peer: str = "", why: str = "") -> None:
        """Somebody was refused. `method` is the rpc's full name; None as identity: nobody who is known.

        `why`: what the caller is not told. Called on an event loop, which tells the count of those that had no line; or
        in any other thread, and then the next line but a second later does.
        """
        who, now = (_NOBODY if identity is None else identity.name), self._now()
        with self._lock:
            if (who, method) not in self._denials and len(self._denials) >= _KEPT:
                self._forget(now)
                if len(self._denials) >= _KEPT:
                    who, method = _OTHERS
            denials = self._denials.get((who, method))
            if denials is not None and now - denials.said_at < self._every_s:
                denials.unsaid += 1
                if denials.unsaid == 1:
                    self._tell_later(denials.said_at + self._every_s - now, who, method, denials)
                return
            if denials is not None and denials.unsaid:
                self._tell_count(who, method, denials)
            self._denials[who, method] = _Denials(now)
        facts = {name: show(failure.metadata[name]) for name in _MISSING if name in failure.metadata}
        facts |= {name: value for name, value in (("peer", peer), ("why", why)) if value}
        _log.warning("denied", who=who, method=method, reason=failure.reason.value, **facts)

    def changed(self, who: str, subject: str, before: int, after: int, *, method: str | None = None) -> None:
        """Something was changed: `subject`, as `backend/digits`. The revisions are those before and after.

        With `method`, by `who` in that rpc. Without, by the running rpc or the process itself: then `who` is used only
        if the caller has no identity.
        """
        if method is None:
            who, method = caller_name() or who, current_rpc() or "none"
        _log.info("changed", who=who, method=method, object=subject, before=before, after=after)

    def _tell_later(self, left_s: float, who: str, method: str, denials: _Denials) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(left_s, self._tell, who, method, denials)

    def _tell(self, who: str, method: str, denials: _Denials) -> None:
        with self._lock:
            if denials.unsaid:
                self._tell_count(who, method, denials)

    def _tell_count(self, who: str, method: str, denials: _Denials) -> None:
        count, denials.unsaid, denials.said_at = denials.unsaid, 0, self._now()
        _log.warning("denied again", who=who, method=method, count=count)

    def _forget(self, now: float) -> None:
        """Those of whom nothing was heard for a while."""
        for (who, method), denials in list(self._denials.items()):
            if now - denials.said_at >= self._every_s:
                if denials.unsaid:
                    self._tell_count(who, method, denials)
                del self._denials[who, method]


AUDIT: Final = AuditLog()
"""That of this process."""
