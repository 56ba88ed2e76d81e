"""The replica's composition root: the only file that names concrete classes.

Start: server (NOT_SERVING), membership (STARTING), configuration, handler, SERVING, READY.
Stop: NOT_SERVING and DRAINING, what has not started goes back to the routers, what runs ends; their streams end after
the last answer; STOPPED; membership, server.
"""

from __future__ import annotations

import os
import random

from replica_service.config import ReplicaSettings
from replica_service.convert import Issuer
from replica_service.direct_servicer import DirectServicer
from replica_service.servicer import Identity, ReplicaServicer
from replica_service.shell.engine import Engine
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.loading import LoadHandler, load_handler
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.links.controller_link import ControllerLink
from replica_service.shell.metrics import observe
from replica_service.shell.replica import HostedReplica
from replica_service.slot_servicer import ReplicaSlotServicer
from slotmesh.ids import new_id
from slotmesh.runtime.announce import announce
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.clock import Clock, MonotonicClock
from slotmesh.runtime.exits import CannotStart, exit_within
from slotmesh.runtime.info_servicer import InfoServicer
from slotmesh.runtime.parent import watch_parent
from slotmesh.runtime.process_identity import own_process
from slotmesh.runtime.server import GrpcServer, Server
from slotmesh.runtime.signals import stop_signals
from slotmesh.runtime.tasks import Supervisor
from slotmesh.telemetry.setup import setup_metrics
from slotmesh.v1 import (
    direct_service_pb2_grpc,
    info_service_pb2,
    info_service_pb2_grpc,
    membership_service_pb2,
    replica_service_pb2_grpc,
    slot_service_pb2_grpc,
)
from slotmesh.version import VERSION
from slotmesh.wire.features import OF_DIRECT_STREAMS, OF_ROUTERS_TO_REPLICAS

EXIT_LOST_CALLS = 1
"""Exit status of a replica whose calls ran on when they were cancelled at the end of the grace."""
EXIT_UNHEALTHY = 1
"""Exit status of a replica that ended because its health checks had failed."""
EXIT_S = 1.0
"""How long the process may take to end after the drain."""
ROUTER_GRACE_S = 2.0
"""How long routers have to half-close their streams once all was answered."""
STREAM_GRACE_S = 5.0
"""How long routers have to read their last answers."""


async def main(settings: ReplicaSettings) -> int:
    """Runs a replica until it is asked to stop; returns the exit status."""
    with stop_signals(ignore_interrupt=True, is_last=True) as stop:
        if settings.parent_fd is not None:
            watch_parent(settings.parent_fd, stop.set)
        app = ReplicaApp(settings)
        app.replica.stop_asked = stop
        status = CannotStart.exit_code
        try:
            status = await app.run()
        finally:
            exit_within(EXIT_S, status)
        return status


class ReplicaApp:
    """A replica on the running event loop."""

    def __init__(
        self,
        settings: ReplicaSettings,
        clock: Clock | None = None,
        *,
        server: Server | None = None,
        load: LoadHandler = load_handler,
    ) -> None:
        """`clock` is the source of time; the system's where it is None.

        `server` replaces the one that the settings describe, and `load` the import of the handler that they name.
        """
        self._settings = settings
        self._clock = clock or MonotonicClock()
        self.identity = Identity(
            replica_id=settings.make_replica_id(), incarnation=new_id(), backend=settings.backend_name
        )
        self.servicer = ReplicaServicer(self.identity, self._clock)
        self._slot_servicer = ReplicaSlotServicer(self._clock)
        self._direct_servicer = DirectServicer(self._clock)
        self.server = server or GrpcServer(
            "replica", host=settings.host, port=settings.port, insecure=settings.insecure
        )
        self.server.add(replica_service_pb2_grpc.add_ReplicaServiceServicer_to_server, self.servicer)
        self.server.add(slot_service_pb2_grpc.add_SlotServiceServicer_to_server, self._slot_servicer)
        self.server.add(direct_service_pb2_grpc.add_DirectServiceServicer_to_server, self._direct_servicer)
        self._info = InfoServicer(
            info_service_pb2.SERVER_KIND_REPLICA,
            server_id=self.identity.replica_id,
            incarnation=self.identity.incarnation,
            features=(*OF_ROUTERS_TO_REPLICAS, *OF_DIRECT_STREAMS),
        )
        self.server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, self._info)
        self.replica = HostedReplica(
            settings.handler or "",
            self._make_engine,
            graceful_timeout_s=settings.graceful_timeout.total_seconds(),
            resume_ttl_s=settings.resume_ttl.total_seconds(),
            load=load,
            clock=self._clock,
        )
        self.replica.on_sick = lambda: self.server.set_serving(False)

    async def run(self) -> int:
        """From start to stop; returns the exit status.

        Raises:
            CannotStart: the port or the handler is at fault.
        """
        settings, replica = self._settings, self.replica
        metrics = self._metrics = setup_metrics("replica", settings.metrics_host, settings.metrics_port)
        try:
            await self.server.start()
            self._info.address = replica.address = settings.advertise or self.server.address
            replica.metrics_address = metrics.address or ""
            async with Supervisor(on_failure=replica.stop_asked.set) as tasks:
                link = self._attach(tasks)
                try:
                    return await self._live(tasks, attached=link is not None)
                finally:
                    if link is not None:
                        await link.goodbye()
        finally:
            await self.server.stop()
            if replica.engine is not None:
                await replica.engine.stop()
            await replica.close()
            metrics.shutdown()

    async def _live(self, tasks: Supervisor, *, attached: bool) -> int:
        """From the handler's construction to the end of the last call; returns the exit status."""
        replica = self.replica
        is_complete = True
        if (not attached or await replica.wait_configured()) and await replica.start():
            if self._settings.announce_fd is not None:
                announce(self._settings.announce_fd, self.server.address)
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
        """Membership of the mesh; None for a replica on its own."""
        if self._settings.controller is None:
            return None
        hello = membership_service_pb2.ReplicaHello(
            replica_id=self.identity.replica_id,
            incarnation=self.identity.incarnation,
            backend=self.identity.backend,
            pid=os.getpid(),
            version=VERSION,
            process=own_process(),
        )
        link = ControllerLink(self._settings.controller, hello, self.replica, Backoff())
        self.replica.on_change = link.report_soon
        self.replica.has_controller = True
        tasks.start(link.run(), name="controller link")
        return link

    def _make_engine(
        self, methods: dict[str, HandlerMethod], max_ongoing: int, prefetch: int, handler_loop: HandlerLoop
    ) -> Engine:
        """The handler is there: from now on routers get streams."""
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
                lambda: self.replica.address,
            ),
            handler_loop=handler_loop,
        )
        observe(self._metrics, engine, self.identity.backend)
        self.servicer.engine = engine
        self._slot_servicer.serve(engine)
        self._direct_servicer.serve(engine)
        self.server.set_serving()
        return engine
