"""Audit lines and events of committed changes: each follows from a commit, not from the request that asked for it.

Purpose: a change that is in force has its audit lines and its events, whether or not its caller still waits. A caller
may be cancelled while the store writes; a write whose end was not seen may turn out to be stored later.
Invariants: everything a commit changed of the configuration, of shifts and of paused rollouts is reported once, in the
order of the revisions. A large change is reported in slices: the event loop runs in between.
Owner: the event loop. The store calls `committed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from controller_service.core.desired.revisions import ChangeOrigin, RevisionRecord
from controller_service.core.desired.shifts import notices_of_shifts
from controller_service.core.desired.state import Desired
from controller_service.core.events import EventKind, Notice
from controller_service.shell.mesh_state import MeshState
from slotmesh.runtime.loop_slices import SLICE_S
from slotmesh.security.audit import AUDIT


class ChangeJournal:
    """Reports what commits have changed."""

    def __init__(self, state: MeshState) -> None:
        self._state = state
        self._waiting: deque[Iterator[None]] = deque()
        """Reports of commits, oldest first; each step reports one change."""
        self._is_due = False

    def committed(self, before: Desired, after: Desired, origin: ChangeOrigin) -> None:
        """`after` is in force in place of `before`. `origin`: who asked for it, where that is known."""
        self._waiting.append(self._report(before, after, origin))
        if not self._is_due:
            self._write()

    def close(self) -> None:
        """Reports everything that waits."""
        self._write(is_last=True)

    def _write(self, *, is_last: bool = False) -> None:
        """Reports what waits, for as long as a slice lasts."""
        loop = asyncio.get_running_loop()
        self._is_due = False
        until = loop.time() + SLICE_S
        while self._waiting:
            for _ in self._waiting[0]:
                if loop.time() >= until and not is_last:
                    self._is_due = True
                    loop.call_soon(self._go_on)
                    return
            self._waiting.popleft()

    def _go_on(self) -> None:
        if self._is_due:
            self._write()

    def _report(self, before: Desired, after: Desired, origin: ChangeOrigin) -> Iterator[None]:
        records = [record for record in after.history if record.revision > before.configured_at]
        for record in records:
            yield from self._report_record(record)
        for notice in notices_of_shifts(before.shifts, after.shifts, revision=after.configured_at):
            self._state.publish(notice)
            yield
        reported = {change.subject for record in records for change in record.changes}
        for name in _paused_otherwise(before, after):
            self._state.publish(_notice_of_pause(name, origin, is_paused=after.rollouts[name].is_paused))
            if f"backend/{name}" in reported:
                continue  # a rollback of the backend ends the pause of its rollout
            _audit(origin, f"rollout/{name}", after.configured_at, after.configured_at)
            yield

    def _report_record(self, record: RevisionRecord) -> Iterator[None]:
        for change in record.changes:
            subject = change.subject
            kind = EventKind[f"{subject.partition('/')[0]}_{change.verb}".upper()]
            self._state.publish(Notice(kind=kind, subject=subject, message=f"at revision {record.revision}"))
            _audit(record.origin, subject, record.base, record.revision)
            yield


def _notice_of_pause(backend: str, origin: ChangeOrigin, *, is_paused: bool) -> Notice:
    return Notice(
        kind=EventKind.ROLLOUT_PAUSED if is_paused else EventKind.ROLLOUT_RESUMED,
        subject=f"backend/{backend}",
        message=f"{'paused' if is_paused else 'resumed'} by {origin.who or 'an unknown caller'}",
    )


def _audit(origin: ChangeOrigin, subject: str, before: int, after: int) -> None:
    AUDIT.changed(origin.identity or origin.who, subject, before, after, method=origin.method or "none")


def _paused_otherwise(before: Desired, after: Desired) -> Iterator[str]:
    """Backends whose rollout was paused or resumed, by name."""
    if before.rollouts is after.rollouts:
        return
    for name, rollout in after.rollouts.items():
        known = before.rollouts.get(name)
        if rollout.is_paused != (known is not None and known.is_paused):
            yield name
