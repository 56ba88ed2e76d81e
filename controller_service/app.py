"""The composition root: the only file that names concrete classes, and the order of start and stop.

Start: store, loops, server, spec, serving. Stop: NOT_SERVING; launched replicas drain and end, while routers still get
tables; then membership streams, server, loops.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from opentelemetry.metrics import Meter

from controller_service.config import ControllerSettings
from controller_service.servicer import ControllerServicer, MembershipServicer
from controller_service.shell.configurator import Configurator
from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.external import ExternalLauncher
from controller_service.shell.launchers.process import ProcessLauncher, replica_command
from controller_service.shell.launchers.protocol import Launcher, OnExit
from controller_service.shell.mesh_state import Key, MeshState
from controller_service.shell.process_watch import ProcessWatch
from controller_service.shell.reconcile_loop import ReconcileLoop
from controller_service.shell.replica_links import ReplicaLinks
from controller_service.shell.router_links import RouterLinks
from controller_service.shell.table_board import TableBoard
from controller_service.shell.work_queue import WorkQueue
from controller_service.store.memory import MemoryStore
from controller_service.store.protocol import Store
from slotmesh.config import SettingsError
from slotmesh.errors import SlotmeshError
from slotmesh.runtime.announce import announce
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.info_servicer import InfoServicer
from slotmesh.runtime.parent import watch_parent
from slotmesh.runtime.server import GrpcServer
from slotmesh.runtime.signals import stop_signals
from slotmesh.runtime.tasks import Supervisor
from slotmesh.spec.document import load_mesh
from slotmesh.spec.model import InvalidSpec
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge
from slotmesh.telemetry.setup import setup_metrics
from slotmesh.units import join_host_port
from slotmesh.v1 import (
    controller_service_pb2_grpc,
    info_service_pb2,
    info_service_pb2_grpc,
    membership_service_pb2_grpc,
)

MakeLauncher: TypeAlias = Callable[[str, OnExit], Launcher]
"""Makes the launcher, from the address that replicas attach to and the callback for their ends."""

_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without what people confuse."""
_SERVER_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller that serves, and its parts."""

    address: str
    server: GrpcServer
    store: Store
    state: MeshState
    configurator: Configurator
    loop: ReconcileLoop
    replicas: ReplicaLinks
    routers: RouterLinks
    board: TableBoard


async def serve(settings: ControllerSettings) -> None:
    """Runs a controller until it is asked to stop."""
    with stop_signals(ignore_interrupt=settings.parent_fd is not None) as stop:
        if settings.parent_fd is not None:
            watch_parent(settings.parent_fd, stop.set)
        metrics = setup_metrics("slotmesh-controller", settings.metrics_host, settings.metrics_port)
        try:
            async with open_controller(settings, _make_launcher(settings), on_failure=stop.set) as controller:
                observe(metrics.meter, controller)
                await _apply_spec(settings, controller.configurator)
                controller.server.set_serving()
                if settings.announce_fd is not None:
                    announce(settings.announce_fd, controller.address)
                await stop.wait()
        finally:
            metrics.shutdown()


@asynccontextmanager
async def open_controller(
    settings: ControllerSettings, make_launcher: MakeLauncher, *, on_failure: Callable[[], object] | None = None
) -> AsyncIterator[Controller]:
    """Starts a controller, and stops it in order. `on_failure` is called when a part of it fails."""
    lease_s = settings.lease.total_seconds()
    clock = MonotonicClock()
    feed, queue, board = EventFeed(secrets.token_hex(8)), WorkQueue[Key](), TableBoard()
    state = MeshState(clock, queue, feed)
    store = MemoryStore(generation=secrets.token_hex(16), epoch_floor=int(clock.time_of_day() * 1e3))
    replicas = ReplicaLinks(state, store, lease_s=lease_s)
    routers = RouterLinks(state, board, lease_s=lease_s, generation=store.generation)
    configurator = Configurator(store, state, launches=settings.launcher == "process")
    server = GrpcServer("controller", host=settings.host, port=settings.port, insecure=settings.insecure)
    server.add(
        controller_service_pb2_grpc.add_ControllerServiceServicer_to_server,
        ControllerServicer(configurator, store, state, board, feed, launches=settings.launcher == "process"),
    )
    server.add(
        membership_service_pb2_grpc.add_MembershipServiceServicer_to_server, MembershipServicer(replicas, routers)
    )
    info = InfoServicer(info_service_pb2.SERVER_KIND_CONTROLLER, incarnation=store.generation)
    server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, info)
    async with Supervisor(on_failure) as tasks:
        await server.start()
        info.address = server.address
        launcher = make_launcher(join_host_port(_reachable(settings.host), server.port), state.replica_exited)
        loop = ReconcileLoop(
            store=store,
            state=state,
            queue=queue,
            board=board,
            links=replicas,
            launcher=launcher,
            mint_id=mint_replica_id,
        )
        tasks.start(loop.watch_store(), name="watch-store")
        tasks.start(loop.run(), name="reconcile")
        tasks.start(ProcessWatch(state).run(), name="processes")
        try:
            yield Controller(server.address, server, store, state, configurator, loop, replicas, routers, board)
        finally:
            server.set_serving(False)
            try:
                await loop.drain_all()
            finally:
                await launcher.close()
                replicas.close()
                routers.close()
                await server.stop(_SERVER_GRACE_S)
                queue.close()
                await store.close()


def mint_replica_id(backend: str) -> str:
    """A new replica id: `BACKEND-` and 6 random characters, never a number that is used again."""
    return f"{backend}-{''.join(secrets.choice(_ID_ALPHABET) for _ in range(6))}"


def _make_launcher(settings: ControllerSettings) -> MakeLauncher:
    if settings.launcher == "external":
        return lambda _address, _on_exit: ExternalLauncher()
    return lambda address, on_exit: ProcessLauncher(
        replica_command(address, log_format=settings.log_format, log_level=settings.log_level), on_exit
    )


def _reachable(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound to


async def _apply_spec(settings: ControllerSettings, configurator: Configurator) -> None:
    """Raises SettingsError with every mistake."""
    if settings.spec is None:
        return
    try:
        await configurator.apply_mesh(load_mesh(settings.spec), prune=False)
    except InvalidSpec as invalid:
        raise SettingsError(*(f"--spec {settings.spec}: {mistake}" for mistake in invalid.mistakes)) from invalid
    except SlotmeshError as refusal:
        raise SettingsError(f"--spec {settings.spec}: {refusal}") from refusal


def observe(meter: Meter, controller: Controller) -> None:
    """Has metrics read what the controller counts anyway."""
    observe_gauge(
        meter,
        names.CONTROLLER_MEMBERS,
        lambda: {(names.KIND_ROUTER,): len(controller.routers), (names.KIND_REPLICA,): len(controller.replicas)},
    )
    observe_gauge(
        meter,
        names.CONTROLLER_REVISION,
        lambda: {(): table.revision if (table := controller.board.table) is not None else 0},
    )
    observe_counter(
        meter,
        names.CONTROLLER_LAUNCHES,
        lambda: {(backend,): launches for backend, launches in controller.loop.launches.items()},
    )
