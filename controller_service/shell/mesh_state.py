"""The one writer of the observed state, and the queue of what has to be reconciled.

Purpose: applies transitions, publishes notices (events, log), and queues what has to be reconciled.
Invariants: synchronous, so transitions never interleave; a transition that changes nothing wakes no task.
Owner: the event loop. Streams, launchers and the lease watch report here; the reconcile loop reads.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from controller_service.core.desired.revisions import ChangeOrigin, RevisionRecord
from controller_service.core.desired.shifts import notices_of_shifts
from controller_service.core.desired.state import Desired, new_orders
from controller_service.core.event_log import EventKind, Notice
from controller_service.core.observed.launches import exited
from controller_service.core.observed.state import Observed
from controller_service.core.observed.transitions import Transition, ended
from controller_service.core.partition_owners import Incarnation
from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.protocol import Exit
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.loop_slices import SLICE_S
from slotmesh.security.audit import AUDIT

KeyT = TypeVar("KeyT", bound=Hashable)


class WorkQueue(Generic[KeyT]):
    """A set of keys to look at, now or later, that the reconcile loop takes one by one.

    A key waits at most once, however often it is added; of two times the earlier counts; taking waits, without polling,
    until a key is due. One consumer.
    """

    def __init__(self) -> None:
        self._due: dict[KeyT, None] = {}
        self._later: dict[KeyT, asyncio.TimerHandle] = {}
        self._something = asyncio.Event()

    def add(self, key: KeyT) -> None:
        """The key is due now."""
        if timer := self._later.pop(key, None):
            timer.cancel()
        self._due[key] = None
        self._something.set()

    def add_after(self, key: KeyT, delay_s: float) -> None:
        """The key is due in `delay_s` seconds, unless it is earlier."""
        if key in self._due:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if waiting := self._later.get(key):
            if waiting.when() <= at:
                return
            waiting.cancel()
        self._later[key] = loop.call_at(at, self.add, key)

    async def take(self) -> list[KeyT]:
        """Everything that is due, in the order in which it came; waits for the first."""
        await self._something.wait()
        self._something.clear()
        keys = [*self._due]
        self._due.clear()
        return keys

    def close(self) -> None:
        """Forgets everything."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        self._due.clear()


WARNED: Final = frozenset(
    {
        *(EventKind.REPLICA_DEAD, EventKind.BACKEND_CRASH_LOOPING),
        *(EventKind.ROLLOUT_ROLLED_BACK, EventKind.TRAFFIC_SHIFT_ROLLED_BACK, EventKind.STATE_NOT_WRITABLE),
    }
)
"""Notices that an operator should look after."""

_log = get_logger(__name__)

NOTHING_OBSERVED: Final = Observed()


class Concern(enum.Enum):
    """Kinds of things that are reconciled."""

    BACKEND = "backend"
    ENDPOINT = "endpoint"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Key:
    """What has to be reconciled. A key and no event: the loop reads the present state."""

    concern: Concern
    name: str = ""


class MeshState:
    """The observed state, and the tasks that are woken when it changes."""

    def __init__(
        self, clock: Clock, queue: WorkQueue[Key], feed: EventFeed, observed: Observed = NOTHING_OBSERVED
    ) -> None:
        """`observed` is what the store names at the start."""
        self.clock = clock
        self.observed = observed
        self.deferred_starts: dict[str, str] = {}
        """Why missing replicas of a backend cannot be started now, by backend; the reconcile loop writes it."""
        self._queue = queue
        self._feed = feed
        self._listeners: list[Callable[[], object]] = []

    def listen(self, listener: Callable[[], object]) -> None:
        """`listener` is called when the observed state has changed."""
        self._listeners.append(listener)

    def apply(self, transition: Transition, *wakes: Key) -> None:
        """What was observed, and the keys that it concerns."""
        if transition.observed is not self.observed:
            self.observed = transition.observed
            for key in wakes:
                self._queue.add(key)
            for listener in self._listeners:
                listener()
        for notice in transition.notices:
            self.publish(notice)

    def apply_to_replica(self, replica_id: str, change: Callable[[Observed, float], Transition]) -> None:
        """A change of one replica: its backend is looked at, as it was before or as it is now."""
        before = self.observed.backend_of.get(replica_id)
        transition = change(self.observed, self.clock.now())
        after = transition.observed.backend_of.get(replica_id)
        self.apply(transition, *(Key(Concern.BACKEND, name) for name in {before, after} if name is not None))

    def replica_ended(self, owner: Incarnation, how: str) -> None:
        """It is proven that an incarnation starts nothing any more."""
        self.apply_to_replica(owner.replica_id, lambda observed, now: ended(observed, owner, how, now=now))

    def replica_exited(self, exit_: Exit) -> None:
        """A launched process was reaped."""
        replica_id = exit_.replica_id
        self.apply_to_replica(
            replica_id,
            lambda observed, now: exited(
                observed,
                replica_id,
                exit_.how,
                failed=exit_.failed,
                now=now,
                was_killed=exit_.was_killed,
                last_output=exit_.last_output,
            ),
        )
        for name in self.deferred_starts:  # of whatever backend, one may find the devices of the ended replica
            self.wake(Key(Concern.BACKEND, name))

    def wake(self, key: Key) -> None:
        """Has something looked at again, though nothing was observed."""
        self._queue.add(key)

    def publish(self, notice: Notice) -> None:
        """Publishes it to watchers and to the log."""
        log = _log.warning if notice.kind in WARNED else _log.info
        log(notice.kind.name.lower(), subject=notice.subject, detail=notice.message)
        self._feed.publish(time.time(), notice)


class ChangeJournal:
    """Audit lines and events of committed changes.

    Each follows from a commit, not from the request that asked for it: a caller may be cancelled while the store
    writes, and a write whose end was not seen may turn out to be stored later. All that a commit changed of the
    configuration, of shifts, of paused rollouts and of replicas is reported once, in the order of the revisions, a
    large change in slices between which the event loop runs.
    """

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
        for order in new_orders(before, after):
            _audit(origin, f"replica/{order.owner.replica_id}", after.configured_at, after.configured_at)
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
