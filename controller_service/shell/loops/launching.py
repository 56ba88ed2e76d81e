"""Carries out what reconciling decides: has replicas launched, stores steps of rollouts, and finds ended processes.

Invariants: a rollout that is rolled back is one transaction: settings, record and history; it is announced after the
store has it. Where an operator was faster, nothing is stored: the change of the store has the backend looked at again.
What the launcher has is known to the observed state before anything else is decided: at the controller's
start, where earlier lives of it have started instances, and after each start.
Owner: the reconcile loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

from controller_service.core.desired.handler_code import fixed_of, key_of, needed_code, template_of
from controller_service.core.desired.revisions import BY_CONTROLLER, ChangeOrigin, stored_roll_back_note
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord, restored
from controller_service.core.devices import rollout_room, share_limits
from controller_service.core.event_log import EventKind, Notice
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.leases import fenced
from controller_service.core.observed.state import Observed, Restarts
from controller_service.core.observed.transitions import Transition
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.backends import NEVER_S, StartRoom
from controller_service.core.reconciling.rollouts import RolloutStep
from controller_service.shell.code.project_files import CannotSnapshot
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from controller_service.shell.launchers.protocol import (
    Instance,
    LaunchDeferred,
    Launcher,
    LaunchFailed,
    LaunchOrder,
)
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.store.protocol import Conflict, Store
from slotmesh.runtime.process_identity import has_ended
from slotmesh.spec.model import Backend

LOOK_EVERY_S: Final = 0.5


class ProcessWatch:
    """Finds silent replicas whose processes have ended: on this machine, or by fencing themselves.

    Silence proves nothing, but the end of a process does: its partitions can move, and its calls fail. Nothing follows
    from a fence while there are newer members: another controller may acknowledge its reports.
    Owner: one task.
    """

    def __init__(
        self,
        state: MeshState,
        *,
        is_on_hold: Callable[[], bool] = lambda: False,
        has_ended: Callable[[str], bool] = has_ended,
        look_at_pods: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_on_hold`: whether this controller decides nothing, since members may be newer than its store.

        `look_at_pods` ends replicas whose pods have ended before they were known.
        """
        self._look_at_pods = look_at_pods
        self._state = state
        self._is_on_hold = is_on_hold
        self._since = -inf
        """When this controller was on hold last."""
        self._has_ended = has_ended

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Checks all that are silent, once."""
        self._look_at_pods()
        for owner, process in suspects(self._state.observed).items():
            if self._has_ended(process):
                self._state.replica_ended(owner, "its process has ended")
        now = self._state.clock.now()
        if self._is_on_hold():
            self._since = now
        for owner, silent_s in fenced(self._state.observed, now, since=self._since).items():
            self._state.replica_ended(owner, f"it has fenced itself: it was silent for {silent_s:.0f} s")


def suspects(observed: Observed) -> dict[Incarnation, str]:
    """The processes of silent replicas that were not started here, and are not known to have ended."""
    return {
        replica.owner: replica.process
        for replica in observed.incarnations()
        if replica.process and replica.suspect_since is not None and not replica.gone and not replica.launched
    }


COLLECT_EVERY_S: Final = 60.0
KILL_MARGIN_S: Final = 5.0
"""Time for a replica to end, after the calls that it waited for."""


class Launching:
    """Starts, drains and kills replicas."""

    def __init__(
        self,
        state: MeshState,
        links: ReplicaLinks,
        launcher: Launcher,
        mint_id: Callable[[str], str],
        snapshots: CodeSnapshots,
        give_up_after_s: float = NEVER_S,
        *,
        is_held: bool = False,
    ) -> None:
        """`mint_id` gives the id under which a replica of a backend is shown that could not be started.

        What was started by a newer state, or by another controller, is reported to the newer members of `links`.
        `give_up_after_s`: how long a launched replica may be suspect before it is killed. `is_held`: nothing is started
        before a mesh was applied.
        """
        self.is_held = is_held
        self._snapshots = snapshots
        self.give_up_after_s = give_up_after_s
        self._state = state
        self._links = links
        self._launcher = launcher
        self.devices = launcher.devices
        self._planned_for: Mapping[str, Backend] | None = None
        self._newer = links.newer
        self._mint_id = mint_id
        self.launches = launcher.launches
        """Whether replicas are started; no longer, once the controller is about to end."""
        self.counts: Counter[str] = Counter()
        """Processes started, by backend."""
        links.newer.listen(self._withdraw)

    @property
    def watch_age_s(self) -> float | None:
        """As the launcher reports it."""
        return self._launcher.watch_age_s

    def room(self, backend: Backend) -> StartRoom:
        """How many more replicas of a backend may start."""
        ledger = self.devices() if backend.devices else None
        devices = None if ledger is None else rollout_room(ledger, backend, ending=self._state.observed.ending())
        return StartRoom(devices, self._launcher.most_starting)

    def plan_devices(self, backends: Mapping[str, Backend]) -> None:
        """Leaves the devices free that these backends want as a whole."""
        if backends is self._planned_for or (ledger := self.devices()) is None:
            return
        self._planned_for = backends
        self._launcher.limit_shares(share_limits(ledger.pools, backends.values()))

    def take_stock(self) -> None:
        """Takes over instances that are not known yet."""
        for instance in self._launcher.observe():
            known = self._state.observed.replica(instance.replica_id)
            if known is None or not known.launched:
                self._newer.look_at(f"replica/{instance.replica_id}", instance.order.version)
                self._take_over(instance)
        self._newer.disown = self._launcher.disown
        for stranger in self._launcher.strangers():
            self._newer.found(f"replica/{stranger.replica_id}", stranger.why)

    async def start(self, backend: Backend, count: int) -> None:
        """Sees to it that `count` replicas run that have the backend's present settings and code.

        Raises LaunchDeferred.
        """
        if self.is_held:
            return
        try:
            await self._attempt(backend, lambda order: self._launcher.start(order, count))
        finally:
            self.take_stock()

    async def can_start(self, backend: Backend) -> bool:
        """Whether a replica with the present settings could be started, once one of its backend makes way.

        If not, that is a start that has failed. Raises LaunchDeferred.
        """
        if self.is_held:
            return False
        ledger = self.devices() if backend.devices else None
        if ledger is not None:
            observed = self._state.observed
            ending = {*observed.ending(), *(it.replica_id for it in observed.replicas(backend.name))}
            left = ledger.without(ending)
            if left.choose(backend.devices) is None:
                raise LaunchDeferred(f"no device would be free: {left.lack(backend.devices)}")
        return await self._attempt(backend, self._launcher.prepare)

    async def _attempt(self, backend: Backend, act: Callable[[LaunchOrder], Awaitable[None]]) -> bool:
        """Whether it succeeded, with the backend's present settings and code; a failure is shown as a replica's."""
        template = template_of(backend)
        order = LaunchOrder(
            backend=backend.name,
            handler=backend.handler,
            template=template,
            fixed=fixed_of(backend),
            version=self._newer.version(),
            handler_version=backend.version,
            pod=backend.pod,
            process=backend.process,
            graceful_timeout_s=backend.graceful_timeout_s,
            wanted_devices=backend.devices,
        )
        try:
            if backend.code and self._launcher.imports_snapshots:
                code = await asyncio.to_thread(self._snapshots.tree_of, key_of(backend), backend.code)
                order = replace(order, code=code)
            await act(order)
        except (LaunchFailed, CannotSnapshot) as error:
            failure = str(error)
        else:
            return True
        replica_id = self._mint_id(backend.name)
        self._state.apply_to_replica(
            replica_id,
            lambda observed, now: launches.launch_failed(
                observed,
                replica_id,
                backend.name,
                failure,
                now=now,
                template=template,
                handler_version=backend.version,
            ),
        )
        return False

    async def collect_code(self, store: Store) -> None:
        """Removes snapshots that no version, revision or replica needs, now and then, until cancelled.

        Nothing is removed before members had the time to attach, and nothing once one of them knows a newer state: an
        older store does not name all that is needed.
        """
        await asyncio.sleep(COLLECT_EVERY_S + self._links.lease_s)
        while True:
            if not self._newer:
                needed = {*needed_code(store.read()), *(Path(it.order.code).name for it in self._launcher.observe())}
                await asyncio.to_thread(self._snapshots.collect, needed)
            await asyncio.sleep(COLLECT_EVERY_S)

    def discard_code(self) -> None:
        """Nothing needs it any more: no replica is left, and versions end with this controller."""
        self._snapshots.discard()

    def drain(self, replica_id: str, message: str, grace_s: float) -> None:
        """Has a replica end in order, however it was started; a launched one is killed when its grace is over."""
        self._state.apply_to_replica(
            replica_id, lambda observed, _: transitions.drain_requested(observed, replica_id, message)
        )
        self._links.drain(replica_id, message)
        self._launcher.stop(replica_id, grace_s=grace_s + KILL_MARGIN_S)

    def kill(self, replica_id: str, message: str) -> None:
        """Ends a launched replica that is hung."""
        self._state.apply_to_replica(
            replica_id, lambda observed, now: launches.given_up(observed, replica_id, message, now=now)
        )
        self._launcher.kill(replica_id)

    def _withdraw(self) -> None:
        """Where the store turns out to be an older copy: ends what this start has launched and was never ready.

        No table names it, and it would never be configured. Its record would keep the newest store from going on.
        """
        own_term = self._newer.version().term_id
        for instance in self._launcher.observe() if self._newer else ():
            replica = self._state.observed.replica(instance.replica_id)
            was_ready = replica is None or replica.gone or replica.ready_at is not None
            if instance.order.version.term_id == own_term and not was_ready:
                self.drain(instance.replica_id, "it was started by an older state file", 0.0)

    def _take_over(self, instance: Instance) -> None:
        order = instance.order
        self.counts[order.backend] += not instance.was_found
        self._state.apply_to_replica(
            instance.replica_id,
            lambda observed, now: launches.launched(
                observed,
                instance.replica_id,
                order.backend,
                template=order.template,
                fixed=order.fixed,
                pid=instance.pid,
                process=instance.process,
                handler_version=order.handler_version,
                was_found=instance.was_found,
                now=now,
            ),
        )
        if order.devices:
            self._state.apply_to_replica(
                instance.replica_id,
                lambda observed, _: launches.holds(observed, instance.replica_id, order.devices),
            )
        if instance.waits_for:
            self.waits(instance.replica_id, instance.waits_for)

    def waits(self, replica_id: str, why: str) -> None:
        """The system that starts a replica has not started it. Empty `why`: it was started, now."""
        self._state.apply_to_replica(
            replica_id, lambda observed, now: launches.waits(observed, replica_id, why, now=now)
        )


class RolloutMemory:
    """Commits steps of rollouts."""

    def __init__(self, store: Store, state: MeshState) -> None:
        self._store = store
        self._state = state

    async def remember(self, desired: Desired, name: str, step: RolloutStep) -> None:
        """Stores a step that was planned with `desired`."""
        record, good = step.record, step.goes_back_to
        if record is None:
            return
        change = ChangeSet(put_rollouts=(record,))
        if good is not None:
            origin = ChangeOrigin(
                who=BY_CONTROLLER, time_s=self._state.clock.time_of_day(), note=stored_roll_back_note(name)
            )
            backend = restored(desired.backends[name], good)
            change = ChangeSet(put_rollouts=(record,), put_backends=(backend,), origin=origin)
        try:
            await self._store.commit(change, expected_revision=desired.revision)
        except Conflict:
            self._state.wake(Key(Concern.BACKEND, name))
            return
        bad = desired.backends[name]
        if good is not None:  # if it is applied again, that is a new try, which starts without delay
            observed = self._state.observed.with_restarts(name, template_of(bad), Restarts())
            self._state.apply(Transition(observed))
        self._state.publish(_notice(record, bad, good))


def _notice(record: RolloutRecord, backend: Backend, good: Backend | None) -> Notice:
    subject = f"backend/{backend.name}"
    if good is not None:
        message = f"{_named(backend)} is rolled back, {_named(good)} is in force again: {record.why}"
        return Notice(kind=EventKind.ROLLOUT_ROLLED_BACK, subject=subject, message=message)
    if record.is_complete:
        return Notice(kind=EventKind.ROLLOUT_COMPLETE, subject=subject, message=f"all replicas run {_named(backend)}")
    return Notice(
        kind=EventKind.ROLLOUT_STARTED, subject=subject, message=f"replicas are replaced by {_named(backend)}"
    )


def _named(backend: Backend) -> str:
    """The name of its settings, for a person."""
    image = backend.pod.image if backend.pod is not None else ""
    return " ".join(filter(None, (backend.handler, backend.version, image)))
