"""Has the launcher do what reconciling decides, and takes over from it what runs.

Invariants: what the launcher has is known to the observed state before anything else is decided: at the controller's
start, where earlier lives of it have started instances, and after each start.
Owner: the reconcile loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from controller_service.core import launches, transitions
from controller_service.core.endings import NEVER_S
from controller_service.core.handler_code import needed_code
from controller_service.core.templates import fixed_of, template_of
from controller_service.shell.code.scanning import CannotSnapshot
from controller_service.shell.code.snapshots import CodeSnapshots
from controller_service.shell.launchers.protocol import Instance, Launcher, LaunchFailed, LaunchOrder
from controller_service.shell.mesh_state import MeshState
from controller_service.shell.replica_links import ReplicaLinks
from controller_service.store.protocol import Store
from slotmesh.spec.model import Backend

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
        self._newer = links.newer
        self._mint_id = mint_id
        self.launches = launcher.launches
        """Whether replicas are started; no longer, once the controller is about to end."""
        self.counts: Counter[str] = Counter()
        """Processes started, by backend."""

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
        """Sees to it that `count` replicas run that have the backend's present settings and code."""
        if self.is_held:
            return
        template, fixed = template_of(backend), fixed_of(backend)
        order = LaunchOrder(backend=backend.name, handler=backend.handler, template=template, fixed=fixed)
        order = replace(order, version=self._newer.version())
        failure = ""
        try:
            if backend.code:
                code = await asyncio.to_thread(self._snapshots.tree_of, backend.handler, backend.code)
                order = replace(order, code=code)
            await self._launcher.start(order, count)
        except (LaunchFailed, CannotSnapshot) as error:
            failure = str(error)
        self.take_stock()
        if failure:
            replica_id = self._mint_id(backend.name)
            self._state.apply_to_replica(
                replica_id,
                lambda observed, now: launches.launch_failed(
                    observed, replica_id, backend.name, failure, now=now, template=template
                ),
            )

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
            replica_id, lambda observed, _: transitions.told_to_drain(observed, replica_id, message)
        )
        self._links.drain(replica_id, message)
        self._launcher.stop(replica_id, grace_s=grace_s + KILL_MARGIN_S)

    def kill(self, replica_id: str, message: str) -> None:
        """Ends a launched replica that is hung."""
        self._state.apply_to_replica(
            replica_id, lambda observed, now: launches.given_up(observed, replica_id, message, now=now)
        )
        self._launcher.kill(replica_id)

    def _take_over(self, instance: Instance) -> None:
        order = instance.order
        change = launches.found_running if instance.was_found else launches.launched
        self.counts[order.backend] += not instance.was_found
        self._state.apply_to_replica(
            instance.replica_id,
            lambda observed, now: change(
                observed,
                instance.replica_id,
                order.backend,
                template=order.template,
                fixed=order.fixed,
                pid=instance.pid,
                process=instance.process,
                now=now,
            ),
        )
