"""The one writer of the observed state, and the queue of what has to be reconciled.

Purpose: applies transitions, publishes notices (events, log), and queues what has to be reconciled.
Invariants: synchronous, so transitions never interleave; a transition that changes nothing wakes no task.
Owner: the event loop. Streams, launchers and the lease watch report here; the reconcile loop reads.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from controller_service.core.events import EventKind, Notice
from controller_service.core.observed.launches import exited
from controller_service.core.observed.state import Observed
from controller_service.core.observed.transitions import Transition, ended
from controller_service.core.partitions import Incarnation
from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.protocol import Exit
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock

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
        *(EventKind.ROLLOUT_TAKEN_BACK, EventKind.TRAFFIC_SHIFT_TAKEN_BACK, EventKind.STATE_NOT_WRITABLE),
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
        self._queue = queue
        self._feed = feed

    def apply(self, transition: Transition, *wakes: Key) -> None:
        """What was observed, and the keys that it concerns."""
        if transition.observed is not self.observed:
            self.observed = transition.observed
            for key in wakes:
                self._queue.add(key)
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

    def wake(self, key: Key) -> None:
        """Has something looked at again, though nothing was observed."""
        self._queue.add(key)

    def publish(self, notice: Notice) -> None:
        """Publishes it to watchers and to the log."""
        log = _log.warning if notice.kind in WARNED else _log.info
        log(notice.kind.name.lower(), subject=notice.subject, detail=notice.message)
        self._feed.publish(time.time(), notice)
