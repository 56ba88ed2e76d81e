"""The composition root: the only file that names concrete classes, and the order of start and stop.

Start: store, loops, server, spec, serving. Stop: NOT_SERVING; launched replicas drain and end, while routers still get
tables, or are left to the next controller; then membership streams, server, loops. If another controller may lead, all
that writes or announces ends first, immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from controller_service.config import MEMORY, ControllerSettings
from controller_service.controller_server import Front
from controller_service.convert.statuses import KnownLoads
from controller_service.core.desired.state import Desired
from controller_service.core.observed.replica_groups import restored
from controller_service.core.roster import HEARD_WITHIN_S
from controller_service.http_route_servicer import HttpRouteServicer
from controller_service.servicer import ControllerServicer, MembershipServicer, OperatorControls
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.changes.controls import ReplicaControl, StateKeeper
from controller_service.shell.changes.device_checks import DeviceChecks
from controller_service.shell.code.snapshot_keeper import snapshots_of
from controller_service.shell.events import EventArchive
from controller_service.shell.launchers.device_pools import device_rules
from controller_service.shell.launchers.launched_processes import LaunchDirectoryInUse
from controller_service.shell.launchers.protocol import Launcher, OnExit, mint_replica_id
from controller_service.shell.leadership import LeadershipBoard, NewerMembers
from controller_service.shell.loops.autoscaler import Autoscaler, load_policies
from controller_service.shell.loops.launching import Launching, ProcessWatch
from controller_service.shell.loops.pod_events import PodEvents
from controller_service.shell.loops.reconcile_loop import ReconcileLoop
from controller_service.shell.loops.shifter import Shifter
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.router_links import RouterLinks
from controller_service.shell.members.tables import TableBoard
from controller_service.shell.mesh_state import ChangeJournal, Key, MeshState, WorkQueue
from controller_service.shell.metrics import observe as observe_controller
from controller_service.shell.operations import OperationWaits
from controller_service.shell.replica_logs import LogBook, echo_output
from controller_service.shell.succession import Succession
from controller_service.store.protocol import Candidacy, MemoryCandidacy, StateRefused, Store
from controller_service.store.sqlite.store_thread import SqliteCandidacy
from slotmesh.ids import new_id
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock, MonotonicClock
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.tasks import Supervisor
from slotmesh.security.identity import Role
from slotmesh.telemetry.setup import MetricsServer
from slotmesh.units import join_host_port, parse_names

MakeLauncher: TypeAlias = Callable[[str, OnExit, LogBook], Launcher]
"""Makes the launcher, from the address that replicas attach to, the callback for their ends, and where output goes."""

OpenStore: TypeAlias = Callable[[str, int], Awaitable[Store]]
"""Opens a store, which has this generation and this epoch floor where it is new."""

_log = get_logger(__name__)

SERVICERS: Final = (ControllerServicer, MembershipServicer, HttpRouteServicer)
_SERVER_GRACE_S: Final = 1.0
_LOOK_S: Final = 0.1


class Controller:
    """A controller that leads, and its parts."""

    loop: ReconcileLoop
    launching: Launching
    _launcher: Launcher

    def __init__(
        self,
        store: Store,
        front: Front,
        settings: ControllerSettings,
        archive: EventArchive,
        clock: Clock,
        *,
        heard_within_s: float,
    ) -> None:
        """It answers from now on, once the server of `front` has started; `start` begins to reconcile."""
        lease_s, launches = settings.lease.total_seconds(), settings.launcher != "external"
        self.store, self.server, self.feed = store, front.server, archive.feed
        self._front, self._settings = front, settings
        self._queue, self.board = WorkQueue[Key](), TableBoard()
        known = restored(store.read(), generation=store.generation, launches=launches, now=clock.now())
        self.state = state = MeshState(clock, self._queue, archive.feed, known)
        self.leadership = LeadershipBoard(store, state)
        self.newer = self.leadership.newer = NewerMembers(store, state, heard_within_s=heard_within_s)
        self.replicas = ReplicaLinks(state, store, self.newer, lease_s=lease_s, launches=launches)
        for replica in known.replicas():
            self.replicas.expect(replica.replica_id)
        self.board.listen(self._follow_routers)
        self.leadership.listen(lambda: self.replicas.follow(controllers=self.leadership.controllers))
        self._journal = ChangeJournal(state)
        store.listen(self._journal.committed)
        policies = load_policies(parse_names(settings.autoscale_policies))
        self._autoscaler = Autoscaler(store, state, policies)
        self.routers = RouterLinks(
            *(state, store, self.board, self.leadership, self.newer),
            bounds=settings.hello_bounds,
            lease_s=lease_s,
            on_loads=self._autoscaler.loads_reported,
        )
        echo = echo_output if settings.replica_output == "echo" else None
        self._logs = LogBook(max_bytes=settings.replica_log_size, echo=echo)
        self._snapshots = snapshots_of(settings, lambda: self._address_for_replicas)
        self.configurator = Configurator(store, state, launches=launches, policies=policies, snapshots=self._snapshots)
        self.configurator.devices = DeviceChecks(device_rules(settings), lambda: state.observed, clock.now)
        self._shifter = Shifter(self.configurator, store, state, self.newer)
        loads = KnownLoads(
            of_replica=self.replicas.loads_of,
            of_routers=self.routers.loads,
            ended_calls=self.replicas.ended_calls,
        )
        control, keeper = (
            ReplicaControl(self.configurator, store, state, self.replicas),
            StateKeeper(store, self.newer, clock),
        )
        parts = (self.configurator, store, state, self.board, archive.feed, self._logs)
        self.operations = OperationWaits(
            *(store, state, self.newer, loads),
            launches=launches,
            max_waits=settings.max_operation_waits,
            waits_for=lambda shift: self._shifter.known_of(shift)[2],
        )
        controls = OperatorControls(self._shifter, control, keeper, self.operations)
        operators = ControllerServicer(*parts, loads=loads, controls=controls, launches=launches)
        members = MembershipServicer(self.replicas, self.routers)
        front.open(operators, members, HttpRouteServicer(store, self.newer), self.leadership)

    @property
    def address(self) -> str:
        """Where its server listens."""
        return self.server.address

    async def start(
        self,
        make_launcher: MakeLauncher,
        tasks: Supervisor,
        on_end: Callable[[], object],
        *,
        patience_s: float,
        is_held: bool,
    ) -> None:
        """Serves, finds what runs, and begins to reconcile. Raises CannotStart."""
        await self._front.start()
        self.leadership.address = self._front.address
        self.store.serving_at(self._front.address)
        self._launcher = launcher = await self._make_launcher(make_launcher, patience_s)
        starts = (self.state, self.replicas, launcher, mint_replica_id, self._snapshots, self._settings.give_up_after_s)
        self.launching = Launching(*starts, is_held=is_held)
        self.launching.take_stock()
        self.loop = loop = ReconcileLoop(
            store=self.store,
            state=self.state,
            queue=self._queue,
            board=self.board,
            links=self.replicas,
            launching=self.launching,
        )
        self.leadership.on_writable = loop.retry_now
        self.configurator.devices.led_by(launcher.devices)
        self.configurator.led_by(loop.release, launcher)
        tasks.keep(loop.watch_store, name="watch-store")
        reconciling = tasks.keep(loop.run, name="reconcile")
        tasks.keep(self._autoscaler.watch_store, name="watch-scaled")
        tasks.keep(self._autoscaler.run, name="autoscaler")
        tasks.keep(self._shifter.run, name="shifts")
        pods = PodEvents(self.state, self.replicas, self.launching, loop.retry_now)
        tasks.keep(lambda: launcher.follow(pods), name="launcher")
        processes = ProcessWatch(self.state, is_on_hold=lambda: not self.newer.decides, look_at_pods=pods.look)
        tasks.keep(processes.run, name="processes")
        tasks.keep(lambda: self.launching.collect_code(self.store), name="snapshots")
        tasks.keep(self._logs.run, name="replica-logs")

        def end() -> None:
            """Another controller may lead: nothing more is decided or announced."""
            self._close()
            reconciling.cancel()
            on_end()

        succession = Succession(self.leadership, self._front.dialer)
        for name, watch in (("leadership", self.leadership.watch), ("succession", succession.watch)):
            tasks.keep(partial(watch, end), name=name, until=lambda: bool(self.leadership.lost))

    async def stop(self) -> None:
        """Ends in order."""
        drains = self._settings.drains_on_stop and not self.leadership.has_heir
        self.server.set_serving(False)
        try:
            if drains:
                await self.loop.drain_all()
        finally:
            await (self._launcher.close() if drains else self._launcher.leave())
            if drains and self._settings.state == MEMORY:
                self.launching.discard_code()
            self._close()
            await self.server.stop(_SERVER_GRACE_S)
            self._queue.close()
            self._journal.close()

    def _close(self) -> None:
        self._front.close()
        self.operations.close()
        self.replicas.close()
        self.routers.close()

    def _follow_routers(self) -> None:
        self.replicas.follow(routers=self.board.table.routes.router_addresses if self.board.table else ())

    @property
    def _address_for_replicas(self) -> str:
        """Where this machine reaches the server."""
        any_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with only
        host = self._settings.host
        return join_host_port(any_host.get(host, host), self.server.port)

    async def _make_launcher(self, make: MakeLauncher, patience_s: float) -> Launcher:
        """The launcher, whose ends are the state's to know. The server ends where there can be none."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                return make(self._address_for_replicas, self.state.replica_exited, self._logs)
            except CannotStart as refusal:
                is_in_use = isinstance(refusal, LaunchDirectoryInUse)
                if not is_in_use or asyncio.get_running_loop().time() >= deadline:
                    await self.server.stop()
                    raise
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def open_controller(
    settings: ControllerSettings,
    make_launcher: MakeLauncher,
    *,
    on_failure: Callable[[], object] | None = None,
    open_store: OpenStore | None = None,
    heard_within_s: float = 0.0,
) -> AsyncIterator[Controller]:
    """Starts a controller, which leads immediately, and stops it in order.

    `on_failure` is called when a part of it fails, or another controller leads. `open_store` opens another store than
    that of the settings, given a generation and an epoch floor for a new one. `heard_within_s`: as in `lead`.

    Raises:
        CannotStart: another controller leads, or there is something else that it cannot work with.
    """
    clock = MonotonicClock()
    if open_store is None:
        candidacy = candidacy_of(settings, clock)
        store = await taken_up(candidacy.try_to_lead())
        if store is None:
            raise CannotStart(f"{settings.state}: is in use by {candidacy.leader.name}")
    else:
        store = await open_store(new_id(), _epoch_floor(clock))
    front = Front(settings, *SERVICERS, tls=settings.tls_source(Role.CONTROLLER))
    parts = (store, front, settings, make_launcher)
    async with lead(*parts, clock=clock, on_end=on_failure, heard_within_s=heard_within_s) as leader:
        yield leader


@asynccontextmanager
async def lead(
    store: Store,
    front: Front,
    settings: ControllerSettings,
    make_launcher: MakeLauncher,
    *,
    clock: Clock,
    on_end: Callable[[], object] | None,
    patience_s: float = 0.0,
    is_held: bool = False,
    heard_within_s: float = HEARD_WITHIN_S,
) -> AsyncIterator[Controller]:
    """A controller with this store, which is closed in the end. Its server starts now, unless it has started before.

    `on_end` is called when a part of it fails, or another controller leads. For `patience_s`, the one that led before
    may still be letting go of what it has launched. `is_held`: it starts no replica before a mesh was applied.
    `heard_within_s`: how long it decides nothing while routers may still report newer tables than its store has.
    """
    try:
        archive = await EventArchive.open(new_id(8), store.events, settings.event_bounds, clock.time_of_day())
        controller = Controller(store, front, settings, archive, clock, heard_within_s=heard_within_s)
        async with Supervisor(on_end) as tasks, archive:
            end = on_end or (lambda: None)
            await controller.start(make_launcher, tasks, end, patience_s=patience_s, is_held=is_held)
            tasks.keep(archive.run, name="events", until=lambda: archive.is_over)
            try:
                yield controller
            finally:
                await controller.stop()
    finally:
        await store.close()


def candidacy_of(settings: ControllerSettings, clock: Clock) -> Candidacy:
    """For the store that `--state` names."""
    generation, epoch_floor = new_id(), _epoch_floor(clock)

    def new() -> tuple[str, Desired]:
        return generation, Desired(epoch_floor=epoch_floor)

    if settings.state == MEMORY:
        return MemoryCandidacy(generation=generation, epoch_floor=epoch_floor)
    if (place := settings.etcd) is not None:
        from controller_service.store.etcd.store import EtcdCandidacy  # noqa: PLC0415 - etcd's messages, for those who use it

        return EtcdCandidacy(place, settings.etcd_access, new)
    return SqliteCandidacy(Path(settings.state), new)


async def taken_up(opening: Awaitable[Store | None]) -> Store | None:
    """The store, if there is one, with a word in the log. Raises CannotStart."""
    try:
        store = await opening
    except StateRefused as refusal:
        raise CannotStart(str(refusal)) from refusal
    if store is not None:
        desired = store.read()
        _log.info(
            "this controller leads",
            generation=store.generation,
            term=store.term,
            revision=desired.revision,
            replicas=len(desired.roster.members),
        )
    return store


def _epoch_floor(clock: Clock) -> int:
    return int(clock.time_of_day() * 1e3)


def observe(metrics: MetricsServer, controller: Controller) -> None:
    """Has metrics read what the controller counts anyway."""
    observe_controller(
        metrics.meter,
        store=controller.store,
        state=controller.state,
        board=controller.board,
        launching=controller.launching,
        replicas=controller.replicas,
        routers=controller.routers,
        feed=controller.feed,
    )
