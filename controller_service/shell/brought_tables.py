"""What is learnt from the tables of other generations that routers have brought.

Purpose: judges when a table can be read (`core.adoption` says what follows from it), takes over the replicas that it
names, and has incarnations end that another process has replaced.
Invariants: a table is dropped only once what was learnt from it is committed, which the reconcile loop does; nothing is
concluded from silence before all members had the time to report.
Owner: `shell.reconcile_loop`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controller_service.core.adoption import Adoption, adopt, has_rivals, replaced
from controller_service.core.brought_table import BroughtTable
from controller_service.core.desired import ChangeSet, Desired
from controller_service.core.notices import EventKind, Notice
from controller_service.core.partitions import PartitionOwnership
from controller_service.core.transitions import Transition
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.shell.replica_links import ReplicaLinks
from controller_service.shell.work_queue import WorkQueue
from controller_service.store.protocol import Store

JUDGED_WITHIN_S: Final = 0.5
"""How often it looks again at a table that names other incarnations than those that are attached."""


class BroughtTables:
    """Reads what routers have brought."""

    def __init__(
        self, store: Store, state: MeshState, queue: WorkQueue[Key], links: ReplicaLinks, *, started_at: float
    ) -> None:
        self._store = store
        self._state = state
        self._queue = queue
        self._links = links
        self._started_at = started_at

    def learn(self, desired: Desired, now: float) -> tuple[ChangeSet, dict[str, BroughtTable]]:
        """What is adopted from tables that routers have brought, and these tables; and the epochs that there have been.

        A controller without a configuration has no table to offer in their place: routers go on with theirs.
        """
        read: dict[str, BroughtTable] = {}
        learnt = desired
        if not is_told_anything(desired):
            return ChangeSet(), read
        ownership: dict[str, PartitionOwnership] = {}
        for router_id, brought in self._state.observed.brought.items():
            observed = self._state.observed
            if has_rivals(observed, brought) and not self._can_judge_rivals(router_id, now):
                self._queue.add_after(Key(Concern.TABLE), JUDGED_WITHIN_S)
                continue
            adoption = adopt(
                learnt,
                observed,
                brought,
                generation=self._store.generation,
                now=now,
                time_of_day=self._state.clock.time_of_day(),
            )
            learnt = replace(learnt.apply(adoption.change), revision=desired.revision)
            ownership.update(adoption.change.put_ownership)
            read[router_id] = brought
            self._take_over(router_id, brought, adoption)
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
        if self._state.observed.elders:
            self._queue.add_after(Key(Concern.TABLE), JUDGED_WITHIN_S)

    def _can_judge_rivals(self, router_id: str, now: float) -> bool:
        """Whether the router has reported its links, and all members have had the time to report."""
        router = self._state.observed.routers.get(router_id)
        has_reported = router is not None and bool(router.generation)
        return has_reported and now >= self._started_at + self._links.lease_s

    def _take_over(self, router_id: str, brought: BroughtTable, adoption: Adoption) -> None:
        backends = dict.fromkeys(member.backend for member in brought.roster.members)
        self._state.apply(Transition(adoption.observed), *(Key(Concern.BACKEND, name) for name in backends))
        for replica_id in adoption.taken:
            self._links.expect(replica_id)
        message = f"of generation {brought.generation}, roster {brought.roster.revision}: "
        message += f"{len(adoption.taken)} of {len(brought.roster.members)} replicas were not known"
        self._state.tell(Notice(kind=EventKind.TABLE_BROUGHT, subject=f"router/{router_id}", message=message))


def is_told_anything(desired: Desired) -> bool:
    """Whether there is a configuration yet."""
    return bool(desired.backends or desired.endpoints)
