"""Brings the observed state nearer to the desired one, and posts routing tables.

Purpose: takes keys, asks the core about the present states, executes actions, commits ownership, posts tables.
Invariants: sleeps until a key is due; a key that fails is tried again, later and later, and does not hold up others;
ownership, roster and table revision are committed before they are announced; a pass has a budget, and is cut into
slices between which the event loop runs; it rests four times as long as it worked, at most `MOST_REST_S`: one
change alone waits for nothing.
Owner: one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventKind, Notice, notices_of_moves
from controller_service.core.observed import routers
from controller_service.core.observed.state import Observed
from controller_service.core.observed.transitions import Transition
from controller_service.core.partition_owners import PartitionOwnership
from controller_service.core.reconciling.backends import (
    NO_BOUNDS,
    Action,
    BackendOutcome,
    DrainReplica,
    ForgetReplica,
    KillReplica,
    MakeWay,
    StartReplicas,
    reconcile_backend,
)
from controller_service.core.reconciling.endpoints import (
    BALANCE_EVERY_S,
    TABLE_WITHIN_S,
    Concerns,
    EndpointOutcome,
    EndpointOutcomes,
    changed_keys,
    find_concerns,
)
from controller_service.core.reconciling.routes import OwnershipPool, RosterListing, RouteBuilder
from controller_service.core.routing import AnnouncedTable, Routes
from controller_service.shell.launchers.protocol import LaunchDeferred
from controller_service.shell.loops.launching import Launching, RolloutMemory
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.tables import EarlierTables, TableBoard, is_configured
from controller_service.shell.mesh_state import Concern, Key, MeshState, WorkQueue
from controller_service.store.protocol import Conflict, Store
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import FailureReports
from slotmesh.runtime.loop_slices import LoopSlices

REST_SHARE: Final = 4.0
"""Rest after each pass, as a multiple of the event loop's time that it has used."""
MOST_REST_S: Final = 0.2
"""The longest rest: what has happened to a replica meanwhile waits for no longer."""
MAX_HANDOVERS: Final = 256
"""Endpoints whose partitions leave live owners at a time; others begin when these have ended. Each is thousands of
partitions that are announced one by one."""
PLANNED_WITHIN_S: Final = 0.1
"""The event loop's time in which a pass plans endpoints; those that are left have their turn in the next pass."""
FIRST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 30.0
MOST_NAMED: Final = 8
"""Concerns that the log names of a failure."""

_log = get_logger(__name__)


class ReconcileLoop:
    """Works off the queue."""

    def __init__(
        self,
        *,
        store: Store,
        state: MeshState,
        queue: WorkQueue[Key],
        board: TableBoard,
        links: ReplicaLinks,
        launching: Launching,
    ) -> None:
        """Nothing is done while `links` know newer members."""
        self._store = store
        self._state = state
        self._queue = queue
        self._board = board
        self._links = links
        self._launching = launching
        self._rollouts = RolloutMemory(store, state)
        self._started_at = state.clock.now()
        self._earlier_tables = EarlierTables(store, state, queue, links, started_at=self._started_at)
        self._routes = RouteBuilder()
        self._pool = OwnershipPool(store.read().ownership.values())
        self._listing = RosterListing()
        self._left: dict[str, None] = {}
        """Endpoints that the last pass had no time for."""
        self._errors: dict[Key, int] = {}
        self._failures = FailureReports()
        self._concerns: Concerns | None = None
        self._concerns_of: tuple[object, ...] = ()

    async def run(self) -> None:
        """Until cancelled. Begins when members had the time to report what they hold."""
        await self._links.newer.settle()
        while True:
            keys = await self._queue.take()
            slices, left = LoopSlices(), self._left
            try:
                await self._pass(keys, slices)
            except BaseException:
                self._add(Concern.ENDPOINT, left)
                for key in keys:  # what has ended this run is no reason to forget them in the next one
                    self._queue.add(key)
                raise
            await asyncio.sleep(min(MOST_REST_S, REST_SHARE * slices.used_s))

    async def watch_store(self) -> None:
        """Turns changes of the store into keys, until the store is closed."""
        before = Desired()
        async for desired in self._store.watch(after_revision=-1):
            backends, endpoints = changed_keys(before, desired)
            before = desired
            self._add(Concern.BACKEND, backends)
            self._add(Concern.ENDPOINT, endpoints)
            self._queue.add(Key(Concern.TABLE))

    def release(self) -> None:
        """A mesh was applied: replicas may be started, where that was held."""
        if self._launching.is_held:
            self._launching.is_held = False
            self._add(Concern.BACKEND, self._store.read().backends)

    def retry_now(self) -> None:
        """What keys have failed for is over: they are tried again immediately, not after their delays."""
        failed, self._errors = self._errors, {}
        for key in failed:
            self._queue.add(key)

    async def drain_all(self) -> None:
        """From now on no launched replica should run: the controller is about to end."""
        self._launching.launches = False
        await self._links.newer.settle()
        for name in [] if self._links.newer else [*self._state.observed.by_backend]:
            await self._look_at_backend(name)

    async def _pass(self, keys: list[Key], slices: LoopSlices) -> None:
        endpoints, self._left = self._left, {}
        endpoints.update((key.name, None) for key in keys if key.concern is Concern.ENDPOINT)
        for key in keys:
            if key.concern is not Concern.BACKEND or self._links.newer:
                continue
            try:
                outcome = await self._look_at_backend(key.name)
            except Exception as error:  # noqa: BLE001 - whatever it is, other keys go on, and this one is tried again
                self._failed([key], error)
            else:
                self._done(key, outcome.retry_after_s)
            endpoints.update(dict.fromkeys(sorted(self._find_concerns().endpoints_of.get(key.name, ()))))
        try:
            if not self._links.newer:
                await self._announce(endpoints, slices)
        except Conflict:
            # An operator was faster: look again at what there is now.
            self._add(Concern.ENDPOINT, endpoints)
            self._queue.add(Key(Concern.TABLE))
        except Exception as error:  # noqa: BLE001 - as above
            self._failed([Key(Concern.TABLE), *(Key(Concern.ENDPOINT, name) for name in endpoints)], error)

    def _outcome(self, name: str, desired: Desired) -> BackendOutcome:
        backend, state = desired.backends.get(name), self._state
        return reconcile_backend(
            name,
            desired,
            state.observed,
            state.clock.now(),
            owners=self._find_concerns().owner_ids,
            launches=self._launching.launches,
            give_up_after_s=self._launching.give_up_after_s,
            ended_calls=self._links.ended_calls,
            time_of_day_s=state.clock.time_of_day(),
            room=NO_BOUNDS if backend is None else self._launching.room(backend),
        )

    async def _look_at_backend(self, name: str) -> BackendOutcome:
        desired = self._store.read()
        self._launching.plan_devices(desired.backends)
        if backend := desired.backends.get(name):
            self._links.configure(backend)
        outcome = self._outcome(name, desired)
        deferred: LaunchDeferred | None = None
        if outcome.rollout.goes_back_to is None:
            for action in outcome.actions:
                try:
                    await self._execute(action)
                except LaunchDeferred as error:  # what does not depend on it goes on
                    deferred = error
        await self._rollouts.remember(desired, name, outcome.rollout)
        self._state.deferred_starts.pop(name, None)
        if deferred is not None:
            if outcome.retry_after_s is not None:
                self._queue.add_after(Key(Concern.BACKEND, name), outcome.retry_after_s)
            self._state.deferred_starts[name] = str(deferred)
            raise deferred
        return outcome

    async def _execute(self, action: Action) -> None:
        match action:
            case StartReplicas(backend, count):
                await self._launching.start(backend, count)
            case DrainReplica(replica_id, message, grace_s):
                self._launching.drain(replica_id, message, grace_s)
            case MakeWay(backend):
                if await self._launching.can_start(backend):
                    # That may take a second: others may have ended since, or an operator may want the old ones again.
                    actions = self._outcome(backend.name, self._store.read()).actions
                    for now in actions:
                        if isinstance(now, MakeWay) and now.backend == backend:
                            for each in now.drains:
                                await self._execute(each)
            case KillReplica(replica_id, message):
                self._launching.kill(replica_id, message)
            case ForgetReplica(replica_id):
                forgotten = Transition(self._state.observed.without_replica(replica_id))
                self._state.apply(forgotten, Key(Concern.TABLE))

    async def _announce(self, endpoints: Iterable[str], slices: LoopSlices) -> None:
        """Commits what was learnt, the owners and the roster, then posts a table if anything of it is new."""
        desired, now = self._store.read(), self._state.clock.now()
        self._earlier_tables.end_replaced(now)
        change, read = self._earlier_tables.learn(desired, now)
        learnt, observed = desired.apply(change), self._state.observed
        is_starting = now < self._started_at + TABLE_WITHIN_S
        names = dict.fromkeys([*endpoints, *(learnt.endpoints if read or is_starting else ())])
        self._state.apply(routers.endpoints_deleted(observed, [it for it in names if it not in learnt.endpoints]))
        outcomes = await self._plan([it for it in names if it in learnt.endpoints], learnt, observed, now, slices)
        ownership = {name: it.ownership for name, it in outcomes.items() if it.ownership is not None}
        change = replace(change, put_ownership=self._pool.all_shared({**change.put_ownership, **ownership}))
        routes = self._routes.build(desired.apply(change), observed, launches=self._launching.launches)
        change = self._with_roster(change, routes, desired)
        if change != ChangeSet():
            before = desired.ownership
            slices.pause()
            desired = await self._store.commit(change, expected_revision=desired.revision)
            slices.go_on()
            balancing = {name for name, it in outcomes.items() if it.balancing}
            self._state.apply(
                routers.handovers_changed(self._state.observed, change.put_ownership, balancing=balancing, now=now)
            )
            await self._announce_moves(before, change.put_ownership, slices)
        # Only what is stored is done: what cannot be is tried later and later.
        for name, outcome in outcomes.items():
            self._done(Key(Concern.ENDPOINT, name), outcome.retry_after_s)
            if (owned := desired.ownership.get(name)) is not None and owned.leaving:
                self._links.revoke(name, owned)
            if slices.are_used:
                await slices.rest()
        self._state.apply(routers.adopted(self._state.observed, read))
        if is_configured(desired):
            self._links.fence(desired.epoch_floor)

        if self._board.table is not None and self._board.table.revision >= desired.revision:
            if routes == self._board.table.routes:
                return
            desired = await self._store.commit(ChangeSet(), expected_revision=desired.revision)
        self._board.post(
            AnnouncedTable(
                generation=self._store.generation,
                revision=desired.revision,
                routes=routes,
                roster=desired.roster,
                term_id=desired.term_id,
                terms=desired.terms,
            )
        )
        self._done(Key(Concern.TABLE), None)

    async def _plan(
        self, names: Sequence[str], desired: Desired, observed: Observed, now: float, slices: LoopSlices
    ) -> dict[str, EndpointOutcome]:
        """What should become of endpoints, by the states of this moment; those beyond the budget are due again.

        The states are values: whatever happens between two slices leads to another pass.
        """
        planned = EndpointOutcomes(
            desired, observed, now, launches=self._launching.launches, started_at=self._started_at
        )
        outcomes: dict[str, EndpointOutcome] = {}
        until_s = slices.used_s + PLANNED_WITHIN_S
        handing_over = sum(bool(it.leaving) for it in desired.ownership.values())
        for at, name in enumerate(names):
            if at and slices.used_s >= until_s:
                self._left = dict.fromkeys(names[at:])
                self._queue.add(Key(Concern.TABLE))
                break
            outcome = planned.of(desired.endpoints[name])
            if outcome.begins_handover and not ((owned := desired.ownership.get(name)) and owned.leaving):
                if handing_over >= MAX_HANDOVERS:
                    outcome = EndpointOutcome(outcome.without_handover, retry_after_s=BALANCE_EVERY_S)
                else:
                    handing_over += 1
            outcomes[name] = outcome
            if slices.are_used:
                await slices.rest()
        return outcomes

    async def _announce_moves(
        self,
        before: Mapping[str, PartitionOwnership],
        after: Mapping[str, PartitionOwnership],
        slices: LoopSlices,
    ) -> None:
        alike: dict[tuple[int, int], list[tuple[EventKind, str]]] = {}
        for name, owned in after.items():
            old = before.get(name)
            if (moves := alike.get((id(old), id(owned)))) is None:
                moves = alike[id(old), id(owned)] = notices_of_moves(old, owned)
            for kind, message in moves:
                self._state.publish(Notice(kind=kind, subject=f"endpoint/{name}", message=message))
            if slices.are_used:
                await slices.rest()

    def _with_roster(self, change: ChangeSet, routes: Routes, desired: Desired) -> ChangeSet:
        """Where the set of listed replicas changes, the roster has the revision that the commit will take."""
        roster = desired.roster if change.put_roster is None else change.put_roster
        listing = self._listing.listing(
            roster,
            routes,
            generation=self._store.generation,
            revision=desired.revision + 1,
            now=self._state.clock.time_of_day(),
        )
        return change if listing is roster else replace(change, put_roster=listing)

    def _find_concerns(self) -> Concerns:
        desired, observed = self._store.read(), self._state.observed
        of = (desired.endpoints, desired.ownership, observed.backend_of)
        if self._concerns is None or any(a is not b for a, b in zip(of, self._concerns_of, strict=True)):
            self._concerns = find_concerns(desired, observed)
            self._concerns_of = of
        return self._concerns

    def _done(self, key: Key, retry_after_s: float | None) -> None:
        self._errors.pop(key, None)
        if retry_after_s is not None:
            self._queue.add_after(key, retry_after_s)

    def _failed(self, keys: Sequence[Key], error: Exception) -> None:
        """Tries the keys again later. A failure that repeats is logged less and less often."""
        if (due := self._failures.take(error, self._state.clock.now())) is not None:
            names = [f"{key.concern.value} {key.name}".rstrip() for key in keys[:MOST_NAMED]]
            is_deferred = isinstance(error, LaunchDeferred)
            (_log.info if is_deferred else _log.error)(
                "a start is deferred; it is tried again" if is_deferred else "reconciling failed; it is tried again",
                concerns=names,
                more=len(keys) - len(names),
                why=due.what,
                times_before=due.times_before,
                exc_info=None if is_deferred else due.traceback,
            )
        for key in keys:
            streak = self._errors.get(key, 0)
            self._errors[key] = streak + 1
            self._queue.add_after(key, min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(streak, 16)))

    def _add(self, concern: Concern, names: Iterable[str]) -> None:
        for name in names:
            self._queue.add(Key(concern, name))
