"""The composition root: the only file that names concrete classes, and the order of start and stop.

Start: store, loops, server, spec, serving. Stop: NOT_SERVING; launched replicas drain and end, while routers still get
tables, or are left to the next controller; then membership streams, server, loops. If another controller may lead, all
that writes or announces ends first, immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from controller_service.config import MEMORY, ControllerSettings, policy_names
from controller_service.convert.operators import KnownLoads
from controller_service.core.desired.state import Desired
from controller_service.core.lineage import HEARD_WITHIN_S
from controller_service.core.observed.replica_groups import restored
from controller_service.core.observed.state import Observed
from controller_service.front import Front
from controller_service.route_servicer import RouteServicer
from controller_service.servicer import ControllerServicer, MembershipServicer, OperatorControls
from controller_service.shell.changes.audit import ChangeJournal
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.changes.controls import ReplicaControl, StateKeeper
from controller_service.shell.code.snapshots import snapshots_of
from controller_service.shell.events import EventArchive, EventFeed
from controller_service.shell.launchers.launch_directory import LaunchDirectoryInUse
from controller_service.shell.launchers.protocol import Launcher, OnExit, mint_replica_id
from controller_service.shell.leadership import LeadershipBoard, NewerMembers
from controller_service.shell.loops.autoscaler import Autoscaler, load_policies
from controller_service.shell.loops.launching import Launching, ProcessWatch
from controller_service.shell.loops.reconcile_loop import ReconcileLoop
from controller_service.shell.loops.rollouts import RolloutControl
from controller_service.shell.loops.shifter import ShiftControl, Shifter
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.router_links import RouterLinks
from controller_service.shell.members.tables import TableBoard
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.shell.metrics import observe as observe_controller
from controller_service.shell.replica_logs import LogBook, echo_output
from controller_service.store.memory import MemoryCandidacy
from controller_service.store.protocol import Candidacy, Store
from controller_service.store.sqlite.connecting import StateRefused
from controller_service.store.sqlite.store import SqliteCandidacy
from slotmesh.ids import new_id
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock, MonotonicClock
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.tasks import Supervisor
from slotmesh.security.identity import Role
from slotmesh.server.server import GrpcServer
from slotmesh.telemetry.setup import MetricsServer
from slotmesh.units import join_host_port

MakeLauncher: TypeAlias = Callable[[str, OnExit, LogBook], Launcher]
"""Makes the launcher, from the address that replicas attach to, the callback for their ends, and where output goes."""

OpenStore: TypeAlias = Callable[[str, int], Awaitable[Store]]
"""Opens a store, which has this generation and this epoch floor where it is new."""

_log = get_logger(__name__)

SERVICERS: Final = (ControllerServicer, MembershipServicer, RouteServicer)
_SERVER_GRACE_S: Final = 1.0
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller that serves, and its parts."""

    address: str
    server: GrpcServer
    store: Store
    state: MeshState
    configurator: Configurator
    loop: ReconcileLoop
    launching: Launching
    replicas: ReplicaLinks
    routers: RouterLinks
    board: TableBoard
    feed: EventFeed
    leadership: LeadershipBoard


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
        candidacy = candidacy_of(settings.state, clock)
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
    parts = (store, front, settings, make_launcher, clock, on_end)
    try:
        async with _controller_of(
            *parts, patience_s=patience_s, heard_within_s=heard_within_s, is_held=is_held
        ) as controller:
            yield controller
    finally:
        await store.close()


@asynccontextmanager
async def _controller_of(
    store: Store,
    front: Front,
    settings: ControllerSettings,
    make_launcher: MakeLauncher,
    clock: Clock,
    on_end: Callable[[], object] | None,
    *,
    patience_s: float,
    heard_within_s: float,
    is_held: bool,
) -> AsyncIterator[Controller]:
    lease_s, launches = settings.lease.total_seconds(), settings.launcher == "process"
    archive = await EventArchive.open(new_id(8), store.events, settings.event_bounds, clock.time_of_day())
    feed, queue, board = archive.feed, WorkQueue[Key](), TableBoard()
    known = restored(store.read(), generation=store.generation, launches=launches, now=clock.now())
    state = MeshState(clock, queue, feed, known)
    leadership = LeadershipBoard(store, state)
    leadership.newer = newer = NewerMembers(store, state, heard_within_s=heard_within_s)
    replicas = _links_to(known, ReplicaLinks(state, store, newer, lease_s=lease_s), board, leadership)
    journal = ChangeJournal(state)
    store.listen(journal.committed)
    policies = load_policies(policy_names(settings.autoscale_policies))
    autoscaler = Autoscaler(store, state, policies)
    make_routers = partial(RouterLinks, state, store, board, leadership, newer, bounds=settings.hello_bounds)
    routers = make_routers(lease_s=lease_s, on_loads=autoscaler.loads_reported)
    logs = LogBook(max_bytes=settings.replica_log_size, echo=echo_output if settings.replica_output == "echo" else None)
    snapshots = snapshots_of(settings, lambda: _address_for_replicas(settings, front.server))
    configurator = Configurator(store, state, launches=launches, policies=policies, snapshots=snapshots)
    shifter = Shifter(configurator, store, state, newer)
    controls = OperatorControls(
        RolloutControl(store, state, replicas.ended_calls, launches=launches),
        ShiftControl(configurator, store, state, shifter),
        ReplicaControl(store, state, replicas),
        StateKeeper(store, newer, clock),
    )
    parts = (configurator, store, state, board, feed, logs)
    operators = ControllerServicer(*parts, loads=_loads_of(replicas, routers), controls=controls, launches=launches)
    front.open(operators, MembershipServicer(replicas, routers), RouteServicer(configurator, store, newer), leadership)
    async with Supervisor(on_end) as tasks, archive:
        await _serve(front, leadership, store)
        launcher = await _launcher_at(front.server, settings, partial(_make, make_launcher, state, logs), patience_s)
        starts = (state, replicas, launcher, mint_replica_id, snapshots, settings.give_up_after_s)
        launching = Launching(*starts, is_held=is_held)
        launching.take_stock()
        loop = ReconcileLoop(store=store, state=state, queue=queue, board=board, links=replicas, launching=launching)
        running = (store, state, configurator, loop, launching, replicas, routers, board, feed, leadership)
        controller = Controller(front.server.address, front.server, *running)
        configurator.led_by(loop.release, takes_snapshots=launcher.imports_snapshots)
        tasks.keep(archive.run, name="events", until=lambda: archive.is_over)
        on_lost = _end_at_once(front, controller, _start_tasks(tasks, controller, autoscaler, shifter, logs), on_end)
        tasks.keep(lambda: leadership.watch(on_lost), name="leadership", until=lambda: bool(leadership.lost))
        try:
            yield controller
        finally:
            drains = settings.on_stop == "drain" and not leadership.has_heir
            await _stop(controller, front, launcher, drains=drains, forgets=settings.state == MEMORY)
            queue.close()
            journal.close()


async def _serve(front: Front, leadership: LeadershipBoard, store: Store) -> None:
    await front.start()
    leadership.address = front.address
    store.serving_at(front.address)


def _loads_of(replicas: ReplicaLinks, routers: RouterLinks) -> KnownLoads:
    return KnownLoads(newest_of=replicas.load_of, earlier_of=replicas.earlier_load_of, of_routers=routers.loads)


def _links_to(known: Observed, replicas: ReplicaLinks, board: TableBoard, leadership: LeadershipBoard) -> ReplicaLinks:
    """These links, for replicas that are known before they attach; they follow what members should know."""
    for replica in known.replicas():
        replicas.expect(replica.replica_id)
    board.listen(lambda: replicas.follow_routers(board.table.routes.router_addresses if board.table else ()))
    leadership.listen(lambda: replicas.follow_controllers(leadership.controllers))
    return replicas


def _end_at_once(
    front: Front, controller: Controller, reconciling: asyncio.Task[None], on_end: Callable[[], object] | None
) -> Callable[[], None]:
    """For the moment in which another controller may lead: nothing more is decided or announced."""

    def end() -> None:
        front.close()
        reconciling.cancel()
        controller.replicas.close()
        controller.routers.close()
        if on_end is not None:
            on_end()

    return end


def _start_tasks(
    tasks: Supervisor, controller: Controller, autoscaler: Autoscaler, shifter: Shifter, logs: LogBook
) -> asyncio.Task[None]:
    """Returns the one that decides."""
    tasks.keep(controller.loop.watch_store, name="watch-store")
    reconciling = tasks.keep(controller.loop.run, name="reconcile")
    tasks.keep(autoscaler.watch_store, name="watch-scaled")
    tasks.keep(autoscaler.run, name="autoscaler")
    tasks.keep(shifter.run, name="shifts")
    tasks.keep(
        ProcessWatch(controller.state, is_on_hold=lambda: not controller.replicas.newer.decides).run, name="processes"
    )
    tasks.keep(lambda: controller.launching.collect_code(controller.store), name="snapshots")
    tasks.keep(logs.run, name="replica-logs")
    return reconciling


async def _stop(controller: Controller, front: Front, launcher: Launcher, *, drains: bool, forgets: bool) -> None:
    controller.server.set_serving(False)
    try:
        if drains:
            await controller.loop.drain_all()
    finally:
        await (launcher.close() if drains else launcher.leave())
        if drains and forgets:
            controller.launching.discard_code()
        front.close()
        controller.replicas.close()
        controller.routers.close()
        await controller.server.stop(_SERVER_GRACE_S)


def candidacy_of(state: str, clock: Clock) -> Candidacy:
    """For the store of that name: `memory`, or a path."""
    generation, epoch_floor = new_id(), _epoch_floor(clock)
    if state == MEMORY:
        return MemoryCandidacy(generation=generation, epoch_floor=epoch_floor)
    return SqliteCandidacy(Path(state), lambda: (generation, Desired(epoch_floor=epoch_floor)))


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


def _make(make_launcher: MakeLauncher, state: MeshState, logs: LogBook, address: str) -> Launcher:
    """The launcher whose ends are the state's to know."""
    return make_launcher(address, state.replica_exited, logs)


async def _launcher_at(
    server: GrpcServer, settings: ControllerSettings, make: Callable[[str], Launcher], patience_s: float
) -> Launcher:
    """The launcher of replicas that attach to the server, which ends where there can be none. Raises CannotStart."""
    address = _address_for_replicas(settings, server)
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        try:
            return make(address)
        except LaunchDirectoryInUse:
            if asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(_LOOK_S)
                continue
            await server.stop()
            raise
        except CannotStart:
            await server.stop()
            raise


def _address_for_replicas(settings: ControllerSettings, server: GrpcServer) -> str:
    """Where this machine reaches a server that listens on the host of the settings."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared with only
    return join_host_port(host, server.port)


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
