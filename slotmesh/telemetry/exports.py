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
_present = threading.local()
"""`run`: the export of this thread."""


class ExportRun:
    """One export. Written by its thread alone."""

    __slots__ = ("began", "is_taken", "why")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.is_taken = False
        """Whether the collector has accepted it."""
        self.why = ""
        """Why the newest attempt failed; empty while none has."""

    def failed(self, why: str) -> None:
        """An attempt has failed; it may be repeated."""
        self.why = why[:_MAX_WHY_CHARS]


class Exports:
    """Those of one signal, of one source or several: an outage begins as one fails, and ends when none does."""

    def __init__(self, signal: str) -> None:
        """`signal`: `traces` or `metrics`."""
        self.signal = signal
        self.dropped = 0
        """What was not accepted, or never sent: spans; metrics are cumulative, the next export has them."""
        self.failing_since: float | None = None
        """When the first failed export of the outage ended, in seconds since 1970; None if there is none."""
        self._guard = threading.RLock()
        """Reentrant: a signal handler or a finalizer may end a span while its thread holds it."""
        self._failures = 0
        self._failing: set[object] = set()
        """Sources whose last export failed."""
        self._dropped_before = 0
        self._running: set[ExportRun] = set()

    def drop(self, count: int) -> None:
        """Counts what is not sent."""
        with self._guard:
            self.dropped += count

    @contextmanager
    def running(self, source: object = None, *, dropped: int = 0) -> Iterator[ExportRun]:
        """An export in this thread. It is counted at the end of the block, unless that raises.

        `dropped`: what it contains, if that is lost where the collector does not accept it.
        """
        run = _present.run = ExportRun()
        with self._guard:
            self._running.add(run)
        try:
            yield run
        finally:
            _present.run = None
            with self._guard:
                self._running.discard(run)
        self._ended(run, source, dropped)

    def _ended(self, run: ExportRun, source: object, dropped: int) -> None:
        with self._guard:
            since, was_failing = self.failing_since, bool(self._failing)
            if run.is_taken:
                self._failing.discard(source)
            else:
                if not was_failing:
                    self.failing_since, self._failures, self._dropped_before = time.time(), 0, self.dropped
                self._failing.add(source)
                self._failures += 1
                self.dropped += dropped
            is_failing = bool(self._failing)
            if not is_failing:
                self.failing_since = None
            failures, lost = self._failures, self.dropped - self._dropped_before
        if is_failing and not was_failing:
            meanwhile = (
                "spans are dropped until it does" if self.signal == "traces" else "later exports have newer totals"
            )
            _log.warning(f"the collector does not take {self.signal}; {meanwhile}", reason=run.why or "no answer")
        elif since is not None and not is_failing:
            _log.info(
                f"the collector takes {self.signal} again",
                failed_exports=failures,
                for_s=round(time.time() - since, 1),
                **({"spans_dropped": lost} if self.signal == "traces" else {}),
            )

    @property
    def is_in_outage(self) -> bool:
        """Whether the collector does not respond: the last export or attempt failed, or a running one hangs."""
        now = time.monotonic()
        with self._guard:
            return bool(self._failing) or any(run.why or now - run.began > LAST_S for run in self._running)

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
        run: ExportRun | None = getattr(_present, "run", None)
        if run is None:
            return True
        arguments = record.args if isinstance(record.args, tuple) else ()
        code = next((it.name for it in arguments if isinstance(it, Enum)), "")
        if code:  # the endpoint is among the others, and may contain a password
            run.failed(f"{code}: {arguments[-1]}")
        return False


_FILTER: Final = _AttemptFilter()


def keep_attempts_quiet() -> None:
    """Has exports that are counted log their outages only. May be called again."""
    filters = logging.getLogger(_EXPORTER).filters
    if _FILTER not in filters:
        filters.insert(0, _FILTER)  # the exporter's own leaves out repeated lines, whichever exporter they are of
