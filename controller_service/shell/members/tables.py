"""Routing tables: the newest one for the streams of routers, and what is learnt from tables that routers send.

Invariants: the revision never goes back; each table, and each delta between two of them, becomes messages once, however
many routers there are, and none before a router needs it: part by part, as streams request them.
Owner: the reconcile loop posts, router streams read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from controller_service.convert.tables import delta_parts, table_parts
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventKind, Notice
from controller_service.core.observed.adoption import Adoption, adopt, has_rivals, replaced
from controller_service.core.observed.transitions import Transition
from controller_service.core.partition_owners import PartitionOwnership
from controller_service.core.roster import EarlierTable
from controller_service.core.routing import AnnouncedTable, find_delta
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.mesh_state import Concern, Key, MeshState, WorkQueue
from controller_service.store.protocol import Store
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.streams.limits import TABLE_PART_BYTES

MAX_DELTAS: Final = 64
"""Deltas to the newest table that are kept: one for each table that some router is behind by."""


class TableFrames:
    """The frames of a table or a delta, each made when it is asked for first."""

    def __init__(self, frames: Iterable[wire.AttachRouterResponse]) -> None:
        self._made: list[wire.AttachRouterResponse] = []
        self._rest = iter(frames)

    def get(self, number: int) -> wire.AttachRouterResponse | None:
        """The frame of that number, from 0; None behind the last."""
        while number >= len(self._made):
            if (frame := next(self._rest, None)) is None:
                return None
            self._made.append(frame)
        return self._made[number]


class TableBoard:
    """Holds the newest table and wakes the streams that wait for a newer one."""

    def __init__(self, part_bytes: int = TABLE_PART_BYTES) -> None:
        """`part_bytes`: what a part of a table has, about."""
        self._part_bytes = part_bytes
        self.table: AnnouncedTable | None = None
        self._listeners: dict[Callable[[], None], None] = {}
        self._frames: dict[int | None, TableFrames] = {}
        """What leads to `table`, by the revision that it is based on, None for the whole of it."""

    def post(self, table: AnnouncedTable) -> None:
        """Announces a table. Its revision must be newer."""
        if self.table is not None and table.revision <= self.table.revision:
            raise ValueError(f"revision {table.revision} after {self.table.revision}")
        self.table = table
        self._frames.clear()
        for listener in self._listeners:
            listener()

    def frames(self, base: AnnouncedTable | None) -> TableFrames:
        """What leads from an earlier table, which was posted here, to the newest one; None: that one as a whole."""
        if self.table is None:
            raise ValueError("no table was posted yet")
        key = None if base is None else base.revision
        known = self._frames.get(key)
        if known is None:
            delta = None if base is None else find_delta(base, self.table)
            if delta is not None:
                known = TableFrames(delta_parts(delta, self._part_bytes))
            elif base is not None:
                known = self.frames(None)
            else:
                known = TableFrames(table_parts(self.table, self._part_bytes))
            if len(self._frames) >= MAX_DELTAS:
                del self._frames[next(iter(self._frames))]
            self._frames[key] = known
        return known

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners[listener] = None

    def ignore(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)


class TableFeed:
    """The frames of one router's stream: the newest table as a whole at first, then the changes since.

    A delta is based on the table that this stream has sent last. A router that asks gets the newest table as a whole,
    once for all requests that arrived before it was sent; a slow one gets one delta for all it has missed. Parts of one
    table, or of one delta, follow each other: the next one begins behind the last part.
    """

    def __init__(self, board: TableBoard) -> None:
        self._board = board
        self._sent: AnnouncedTable | None = None
        self._is_asked = False
        self._frames: TableFrames | None = None
        """What is being sent."""
        self._number = 0
        """Of its next frame."""

    def asked(self) -> None:
        """The router wants the whole table."""
        self._is_asked = True

    def next_frame(self) -> wire.AttachRouterResponse | None:
        """What is to be sent now; None if there is nothing new."""
        if self._frames is not None:
            if (frame := self._frames.get(self._number)) is not None:
                self._number += 1
                return frame
            self._frames = None
        table = self._board.table
        if table is None or (table is self._sent and not self._is_asked):
            return None
        base = None if self._is_asked else self._sent
        self._sent, self._is_asked = table, False
        self._frames, self._number = self._board.frames(base), 1
        return self._frames.get(0)


JUDGED_WITHIN_S: Final = 0.5
"""How often it looks again at a table that names other incarnations than those that are attached."""


class EarlierTables:
    """Learns from the tables of other generations that routers have sent.

    It judges when a table can be read (`core.observed.adoption` has the consequences), takes over the replicas that it
    names, and has incarnations end that another process has replaced. A table is dropped only once its changes are
    committed, which the reconcile loop does. Nothing is concluded from silence before all members had the time to
    report.
    """

    def __init__(
        self, store: Store, state: MeshState, queue: WorkQueue[Key], links: ReplicaLinks, *, started_at: float
    ) -> None:
        self._store = store
        self._state = state
        self._queue = queue
        self._links = links
        self._started_at = started_at

    def learn(self, desired: Desired, now: float) -> tuple[ChangeSet, dict[str, EarlierTable]]:
        """What is adopted from tables that routers have sent, and these tables; and the epochs that there have been.

        A controller without a configuration has no table to offer in their place: routers keep theirs.
        """
        read: dict[str, EarlierTable] = {}
        learnt = desired
        if not is_configured(desired):
            return ChangeSet(), read
        ownership: dict[str, PartitionOwnership] = {}
        for router_id, earlier in self._state.observed.earlier_tables.items():
            observed = self._state.observed
            if has_rivals(observed, earlier) and not self._can_judge_rivals(router_id, now):
                self._queue.add_after(Key(Concern.TABLE), JUDGED_WITHIN_S)
                continue
            adoption = adopt(
                learnt,
                observed,
                earlier,
                generation=self._store.generation,
                now=now,
                time_of_day=self._state.clock.time_of_day(),
            )
            learnt = replace(learnt.apply(adoption.change), revision=desired.revision)
            ownership.update(adoption.change.put_ownership)
            read[router_id] = earlier
            self._take_over(router_id, earlier, adoption)
        fenced_through = self._state.observed.must_fence_through()
        learnt = replace(learnt, epoch_floor=max(learnt.epoch_floor, fenced_through))
        return (
            ChangeSet(
                put_ownership=ownership,
                put_roster=None if learnt.roster is desired.roster else learnt.roster,
                epoch_floor=learnt.epoch_floor if learnt.epoch_floor > desired.epoch_floor else 0,
            ),
            read,
        )

    def end_replaced(self, now: float) -> None:
        """Incarnations that another process has replaced, and that were not known to have ended when it attached."""
        for owner in replaced(self._state.observed, lease_s=self._links.lease_s, now=now):
            self._state.replica_ended(
                owner, "another process has its id, and neither controller nor routers have a link"
            )
        if self._state.observed.unresolved:
            self._queue.add_after(Key(Concern.TABLE), JUDGED_WITHIN_S)

    def _can_judge_rivals(self, router_id: str, now: float) -> bool:
        """Whether the router has reported its links, and all members have had the time to report."""
        router = self._state.observed.routers.get(router_id)
        has_reported = router is not None and bool(router.generation)
        return has_reported and now >= self._started_at + self._links.lease_s

    def _take_over(self, router_id: str, earlier: EarlierTable, adoption: Adoption) -> None:
        backends = dict.fromkeys(member.backend for member in earlier.roster.members)
        self._state.apply(Transition(adoption.observed), *(Key(Concern.BACKEND, name) for name in backends))
        for replica_id in adoption.taken:
            self._links.expect(replica_id)
        message = f"of generation {earlier.generation}, roster {earlier.roster.revision}: "
        message += f"{len(adoption.taken)} of {len(earlier.roster.members)} replicas were not known"
        self._state.publish(Notice(kind=EventKind.TABLE_RECOVERED, subject=f"router/{router_id}", message=message))


def is_configured(desired: Desired) -> bool:
    """Whether there is a configuration yet."""
    return bool(desired.backends or desired.endpoints)
