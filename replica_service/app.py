"""The replica's composition root: the only file that names concrete classes.

Start: server (NOT_SERVING), membership (STARTING), configuration, handler, SERVING, READY.
Stop: NOT_SERVING and DRAINING; calls that have not started are handed back to the routers, running calls end; the
routers' streams end after the last outcome; STOPPED; membership, server.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from replica_service.config import HeldName, ReplicaSettings
from replica_service.convert.slots import Issuer
from replica_service.core.lifecycle import Fence
from replica_service.servicer import DirectServicer, ReplicaIdentity, ReplicaServicer, ReplicaSlotServicer
from replica_service.shell.engine import Engine
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.loading import LoadHandler, load_handler
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.links.controller_link import ControllerLink
from replica_service.shell.metrics import observe, observe_models
from replica_service.shell.process_facts import own_facts
from replica_service.shell.replica import HostedReplica
from replica_service.shell.stopping import EndTimer, Fencing, KernelTimer
from replica_service.shell.telemetry import ReplicaTraces
from slotmesh.client.handler_mesh import current_source, of_process
from slotmesh.handlers import reporting
from slotmesh.handlers.replica_context import OwnReplica, ReplicaContext, current_replica
from slotmesh.handlers.replica_context import of_process as replica_of_process
from slotmesh.ids import new_id
from slotmesh.internal.v1 import membership_service_pb2, replica_service_pb2_grpc
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import Dialer
from slotmesh.runtime.clock import Clock, MonotonicClock
from slotmesh.runtime.exits import CannotStart, exit_within
from slotmesh.runtime.main import log_loop_errors
from slotmesh.runtime.parent import LAUNCHER_ENDED, announce, watch_parent
from slotmesh.runtime.process_identity import own_process
from slotmesh.runtime.signals import stop_signals
from slotmesh.runtime.tasks import Supervisor
from slotmesh.security.identity import Role
from slotmesh.server.info_servicer import InfoServicer
from slotmesh.server.rpc_gate import observe_edge
from slotmesh.server.server import GrpcServer, Server
from slotmesh.telemetry import names
from slotmesh.telemetry.setup import metrics_target, setup_metrics
from slotmesh.telemetry.setup_tracing import setup_tracing
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.v1 import direct_service_pb2_grpc, info_service_pb2, info_service_pb2_grpc, slot_service_pb2_grpc
from slotmesh.version import VERSION

_log = get_logger(__name__)

EXIT_LOST_CALLS = 1
"""Exit status of a replica whose calls ran on when they were cancelled at the end of the grace."""
EXIT_UNHEALTHY = 1
"""Exit status of a replica that ended because its health checks had failed."""
EXIT_WITHIN_GRACE_S = 2.0
"""The part of a fence's grace that is reserved for the exit of the process after its calls were cancelled."""
TASK_FAILED = "a part of it has failed, which its log names"
"""A reason why a replica ends, as text for operators."""
EXIT_S = 1.0
"""How long the process may take to exit after the drain."""
ROUTER_GRACE_S = 2.0
"""How long routers have to half-close their streams after the last outcome."""
STREAM_GRACE_S = 5.0
"""How long routers have to read the last outcomes."""


async def main(settings: ReplicaSettings, held: HeldName | None) -> int:
    """Runs a replica until it is asked to stop; returns the exit status."""
    with stop_signals(ignore_interrupt=settings.parent_fd is not None, is_last=True) as stop:
        if settings.parent_fd is not None:
            watch_parent(settings.parent_fd, partial(stop.ask, LAUNCHER_ENDED))
        app = ReplicaApp(settings, load=partial(load_handler, code=settings.code))
        if settings.controller is None:
            app.on_ready = _warn_of_no_controller
        if held is not None:
            app.on_end_known = held.has_ended
        app.replica.stop_asked = stop
        of_process.source = app.replica.own_mesh
        reporting.of_process.state = app.replica.handler_state
        replica_of_process.own = app.replica.own
        log_loop_errors(asyncio.get_running_loop(), texts=settings.log_exception_text)
        app.is_process = True
        app.prepare_fence()
        status = CannotStart.exit_code
        try:
            status = await app.run()
        finally:
            exit_within(EXIT_S, status)
        return status


def _warn_of_no_controller() -> None:
    _log.warning(
        "this replica belongs to no mesh, and no router sends it calls: it was started without --controller; start it "
        "with --controller HOST:PORT (SLOTMESH_CONTROLLER), as --controller 127.0.0.1:7070"
    )


class ReplicaApp:
    """A replica on the running event loop."""

    fencing: Fencing | None = None
    """Set before `run` if the replica fences itself."""

    def __init__(
        self,
        settings: ReplicaSettings,
        clock: Clock | None = None,
        *,
        server: Server | None = None,
        load: LoadHandler = load_handler,
    ) -> None:
        """`clock` None: the system's. `server` replaces the settings' server, `load` the import of the handler."""
        self._settings = settings
        self.on_ready: Callable[[], None] = lambda: None
        """Called once, when the replica accepts calls."""
        self.on_end_known: Callable[[], None] = lambda: None
        """Called when the controller has read the last report."""
        self._clock = clock or MonotonicClock()
        self.identity = ReplicaIdentity(
            replica_id=settings.make_replica_id(), incarnation=new_id(), backend=settings.backend_name
        )
        self.servicer = ReplicaServicer(self.identity, self._clock)
        self._slot_servicer = ReplicaSlotServicer(self._clock)
        self._direct_servicer = DirectServicer(self._clock)
        self.tls = settings.tls_source(Role.REPLICA, self.identity.backend)
        self._dialer = Dialer(self.tls)
        self.server = server or self._make_server()
        self.server.add(replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server, self.servicer)
        self.server.add(slot_service_pb2_grpc.add_SlotServiceServicer_to_server, self._slot_servicer)
        self.server.add(direct_service_pb2_grpc.add_DirectServiceServicer_to_server, self._direct_servicer)
        self._info = InfoServicer(
            info_service_pb2.SERVER_KIND_REPLICA,
            server_id=self.identity.replica_id,
            incarnation=self.identity.incarnation,
            tls=self.tls,
        )
        self.server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, self._info)
        self.replica = HostedReplica(
            settings.handler or "",
            self._make_engine,
            graceful_timeout_s=settings.graceful_timeout.total_seconds(),
            resume_ttl_s=settings.resume_ttl.total_seconds(),
            keys_hook_timeout_s=settings.keys_hook_timeout.total_seconds(),
            load=load,
            clock=self._clock,
            dialer=self._dialer,
            logs_texts=settings.log_exception_text,
            own=self._own_replica(),
        )
        self.is_process = False
        """Whether the process runs nothing else."""
        self.replica.on_sick = lambda: self.server.set_serving(False)

    def _make_server(self) -> GrpcServer:
        settings = self._settings
        server = GrpcServer(
            "replica",
            host=settings.host,
            port=settings.port,
            insecure=settings.insecure,
            channelz=settings.channelz,
            limits=settings.edge_limits,
            tls=self.tls,
        )
        if settings.advertise is None:  # an advertised address, which may be a proxy's, is the only way in
            server.listen_locally(self.identity.incarnation)
        return server

    def _own_replica(self) -> OwnReplica:
        devices = self._settings.held_devices
        here = ReplicaContext(replica_id=self.identity.replica_id, backend=self.identity.backend, devices=devices)
        return OwnReplica(here)

    def prepare_fence(self) -> None:
        """Sets up fencing if the settings have it."""
        if self._settings.fence is not None:
            timer = KernelTimer(self._clock)
            timer.prepare()
            self.fence_by(timer)

    def fence_by(self, timer: EndTimer) -> None:
        """Sets up fencing with this timer if the settings have it."""
        if (fence := self._settings.fence) is not None:
            drain = partial(self.replica.drain_within, max(0.0, fence.grace_s - EXIT_WITHIN_GRACE_S))
            self.fencing = Fencing(Fence(fence), self._clock, timer, drain)

    async def run(self) -> int:
        """Runs the replica from start to stop. Returns the exit status.

        Raises:
            CannotStart: the port cannot be opened, or the handler cannot be constructed.
        """
        settings, replica = self._settings, self.replica
        if settings.controller is not None or current_source.get() is None:
            current_source.set(replica.own_mesh)
        reporting.current_state.set(replica.handler_state)
        current_replica.set(replica.own)
        traces = self._traces = setup_tracing(
            "slotmesh-replica",
            settings,
            {names.INSTANCE: self.identity.replica_id, names.BACKEND: self.identity.backend},
            samples_roots=True,
        )
        if self.is_process:
            traces.use_for_handlers()
        metrics = self._metrics = setup_metrics(
            "slotmesh-replica",
            settings.metrics_host,
            settings.metrics_port,
            otlp=metrics_target(settings),
            instance=self.identity.replica_id,
            tls=self.tls,
        )
        metrics.prepare()
        metrics.look_at(lambda: self.server.serving)
        metrics.observe_rpcs(self.server.rpc_times)
        metrics.observe_spans(lambda: traces.dropped)
        self._info.exports = (traces.exports, metrics.exports)
        try:
            await self.server.start()
            self._info.address = replica.address = settings.advertised(self.server.address)
            replica.metrics_address = settings.advertised_metrics(metrics.address) if metrics.address else ""
            async with Supervisor(on_failure=partial(replica.stop_asked.ask, TASK_FAILED)) as tasks:
                link = self._attach(tasks)
                try:
                    return await self._live(tasks, attached=link is not None)
                finally:
                    if link is not None:
                        await link.goodbye()
                        if link.is_end_known:
                            self.on_end_known()
                    if self.fencing is not None:
                        self.fencing.close()
        finally:
            await self.server.stop()
            if replica.engine is not None:
                await replica.engine.stop()
            await replica.close()
            await asyncio.gather(metrics.aclose(), traces.aclose())

    async def _live(self, tasks: Supervisor, *, attached: bool) -> int:
        """Runs from the handler's construction to the end of the last call. Returns the exit status."""
        replica = self.replica
        is_complete = True
        if (not attached or await replica.wait_configured()) and await replica.start():
            if self._settings.announce_fd is not None:
                announce(self._settings.announce_fd, self.server.address)
            self.on_ready()
            replica.look_after(tasks)
            await replica.stop_asked.wait()
            self.server.set_serving(False)
            is_complete = await replica.finish()
            self._direct_servicer.end_streams()
            await self.servicer.end_streams(ROUTER_GRACE_S, answers=is_complete)
            await self.server.stop(STREAM_GRACE_S)
        replica.stopped()
        if replica.is_sick:
            return EXIT_UNHEALTHY
        return 0 if is_complete else EXIT_LOST_CALLS

    def _attach(self, tasks: Supervisor) -> ControllerLink | None:
        """Starts the link to the controller; returns None if the settings name none."""
        if self._settings.controller is None:
            return None
        hello = membership_service_pb2.ReplicaHello(
            replica_id=self.identity.replica_id,
            incarnation=self.identity.incarnation,
            backend=self.identity.backend,
            pid=os.getpid(),
            version=VERSION,
            process=own_process(),
            pod_uid=self._settings.pod_uid or "",
            devices=self._settings.held_devices,
            zone=self._settings.zone,
            process_facts=own_facts(),
        )
        hello.start_time.FromMicroseconds(round(self._clock.time_of_day() * 1e6))
        if self.fencing is not None:
            hello.fenced_after.FromTimedelta(timedelta(seconds=self.fencing.bound_s))
        orphan_timeout = self._settings.orphan_timeout
        link = ControllerLink(
            ServerAddresses(self._settings.controller),
            hello,
            self.replica,
            Backoff(),
            orphan_timeout_s=orphan_timeout.total_seconds() if orphan_timeout is not None else None,
            dialer=self._dialer,
            fencing=self.fencing,
        )
        self.replica.on_change = link.report_soon
        self.replica.has_controller = True
        self.replica.own_mesh.refusal = ""
        tasks.keep(link.run, name="controller link", until=lambda: link.is_over)
        return link

    def _make_engine(
        self, methods: dict[str, HandlerMethod], max_ongoing: int, prefetch: int, handler_loop: HandlerLoop
    ) -> Engine:
        """Makes the engine for the constructed handler. From now on routers get streams."""
        if self.fencing is not None:
            self.fencing.begin()
        engine = Engine(
            methods,
            self._clock,
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            chance=random.random,
            resume_ttl_s=self._settings.resume_ttl.total_seconds(),
            issuer=Issuer(
                self._clock,
                self.identity.replica_id,
                self.identity.incarnation,
                self.identity.backend,
                self.replica.own,
                lambda: self.replica.address,
            ),
            handler_loop=handler_loop,
            max_slots_per_caller=self._settings.max_slots_per_caller,
            state=self.replica.handler_state,
        )
        if self.is_process:
            self._metrics.use_for_handlers()
        observe_edge(self._metrics.meter, self.server.edge, [engine.scheduler.slots.quota])
        observe(self._metrics, engine, self.identity.backend, self.fencing)
        if self.replica.models is not None:
            observe_models(self._metrics, self.replica.models, self.identity.backend)
        if (tracing := self._traces.tracing) is not None:
            attributes = {names.REPLICA_ID: self.identity.replica_id, names.BACKEND: self.identity.backend}
            engine.traces = ReplicaTraces(tracing, self._clock.now, attributes)
        engine.errors.logs_texts = self._settings.log_exception_text
        self.servicer.engine = engine
        self._slot_servicer.serve(engine)
        self._direct_servicer.serve(engine)
        self.server.set_serving()
        return engine
