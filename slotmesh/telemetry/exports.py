"""How exports to a collector go: what was dropped, and outages, each logged once, with the counts at its end.

Invariants: thread-safe. The exporter's own lines, one for each attempt, do not reach the log; those of other users of
the exporter in this process do. The end of the process waits for the last export for `LAST_S`, and less for a
collector that is known not to respond.
Owner: the set-up of traces, or of metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from slotmesh.logs import get_logger

LAST_S: Final = 2.0
"""How long the end of the process may wait for the collector, in seconds."""
LAST_IN_OUTAGE_S: Final = 0.5
"""The same if it does not respond."""
_LOOK_EVERY_S: Final = 0.1
_MAX_WHY_CHARS: Final = 300
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"

_log = get_logger(__name__)
_running = threading.local()


class Exports:
    """Those of one signal."""

    def __init__(self, signal: str) -> None:
        """`signal`: `traces` or `metrics`."""
        self.signal = signal
        self.dropped = 0
        """What was not accepted, or never sent: spans; metrics are cumulative, the next export has them."""
        self.failing_since: float | None = None
        """When the first of the latest failed exports ended, in seconds since 1970; None if the last one succeeded."""
        self._guard = threading.RLock()
        """Reentrant: a signal handler or a finalizer may end a span while its thread holds it."""
        self._failures = 0
        self._dropped_before = 0
        self._why = ""
        """Why the running attempt, or the last one, failed."""
        self._began: float | None = None
        """The monotonic time at which the running export began."""

    def drop(self, count: int) -> None:
        """Counts what is not sent."""
        with self._guard:
            self.dropped += count

    @contextmanager
    def running(self) -> Iterator[None]:
        """An export in this thread; `ended` follows."""
        self._began, self._why, _running.exports = time.monotonic(), "", self
        try:
            yield
        finally:
            self._began = _running.exports = None

    def ended(self, *, is_taken: bool, dropped: int = 0) -> None:
        """Counts an export. `dropped`: what it contained, if that is lost with it."""
        with self._guard:
            self.dropped += 0 if is_taken else dropped
            since, failures = self.failing_since, self._failures
            if not is_taken:
                self._failures += 1
                if since is None:
                    self.failing_since, self._dropped_before = time.time(), self.dropped - dropped
            else:
                self.failing_since, self._failures = None, 0
            lost = self.dropped - self._dropped_before
        if not is_taken and since is None:
            meanwhile = (
                "spans are dropped until it does" if self.signal == "traces" else "later exports have newer totals"
            )
            _log.warning(f"the collector does not take {self.signal}; {meanwhile}", reason=self._why or "no answer")
        elif is_taken and since is not None:
            _log.info(
                f"the collector takes {self.signal} again",
                failed_exports=failures,
                for_s=round(time.time() - since, 1),
                **({"spans_dropped": lost} if self.signal == "traces" else {}),
            )

    def failed_attempt(self, why: str) -> None:
        """An attempt of the running export has failed; it may be repeated."""
        self._why = why[:_MAX_WHY_CHARS]

    @property
    def is_in_outage(self) -> bool:
        """Whether the collector does not respond: the last export or attempt failed, or the running one hangs."""
        began = self._began
        if began is None:
            return self.failing_since is not None
        return self.failing_since is not None or bool(self._why) or time.monotonic() - began > LAST_S

    def finish(self, shutdown: Callable[[], object]) -> None:
        """Runs the SDK's shutdown, which exports a last time, and returns when it has ended or the time is over."""
        # The SDK would wait 30 s, and 10 s for an export in progress, longer than is useful here.
        last = threading.Thread(target=shutdown, name=f"last {self.signal}", daemon=True)
        last.start()
        last.join(LAST_IN_OUTAGE_S)
        until = time.monotonic() + LAST_S - LAST_IN_OUTAGE_S
        while last.is_alive() and not self.is_in_outage and time.monotonic() < until:
            last.join(_LOOK_EVERY_S)


class _AttemptFilter(logging.Filter):
    """Gives lines of exports that are counted to these, in place of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        exports: Exports | None = getattr(_running, "exports", None)
        if exports is None:
            return True
        arguments = record.args if isinstance(record.args, tuple) else ()
        code = next((it.name for it in arguments if isinstance(it, Enum)), "")
        if code:  # the endpoint is among the others, and may contain a password
            exports.failed_attempt(f"{code}: {arguments[-1]}")
        return False


_FILTER: Final = _AttemptFilter()


def keep_attempts_quiet() -> None:
    """Has exports that are counted log their outages only. May be called again."""
    logging.getLogger(_EXPORTER).addFilter(_FILTER)
