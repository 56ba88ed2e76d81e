"""A mesh by mutual TLS on the test's event loop: controller, routers, a replica, of one directory of certificates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from controller_service.app import Controller, open_controller
from controller_service.config import ControllerSettings
from controller_service.shell.launchers.protocol import Launcher
from replica_service.app import ReplicaApp
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh import Mesh, Tls, connect
from slotmesh.server.server import GrpcServer
from slotmesh.spec.document import parse_mesh
from tests.support.certificates import Authority
from tests.support.replicas import HANDLERS, running_replica
from tests.support.wait import wait_until

ENDPOINT = "words"
SPEC = "backends: {words: {num_replicas: 1}}\nendpoints: {words: {traffic: {words: 1.0}}}"


@dataclass(slots=True)
class TlsMesh:
    """What runs, and who may connect to it."""

    authority: Authority
    controller: Controller
    replica: ReplicaApp
    routers: list[str] = field(default_factory=list)
    """Their addresses."""
    servers: list[GrpcServer] = field(default_factory=list)
    """The routers'."""

    @property
    def handler(self) -> Any:
        """The constructed handler."""
        assert self.replica.replica.engine is not None
        (method, *_) = self.replica.replica.engine.methods.values()
        return getattr(method.function, "__self__", None)

    def tls(self, name: str = "operator-ops") -> Tls:
        """What a client shows."""
        return Tls.from_dir(self.authority.directory, name)

    def client(self, **options: Any) -> Mesh:
        """As `slotmesh.connect`."""
        return connect(self.routers, **{"tls": self.tls(), "connect_timeout": 5.0, **options})


@asynccontextmanager
async def tls_mesh(
    authority: Authority,
    *,
    routers: int = 1,
    handler: str = f"{HANDLERS}:Handler",
    of_routers: Mapping[str, Any] = MappingProxyType({}),
    **replica: Any,
) -> AsyncIterator[TlsMesh]:
    """A mesh whose endpoint `words` has one replica, with which all routers are linked.

    `of_routers` and `replica` are further settings.
    """
    directory = authority.whole_mesh()
    settings = ControllerSettings(port=0, metrics_port=-1, launcher="external", tls_dir=directory)
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(open_controller(settings, lambda *_: Launcher()))
        await controller.configurator.apply_mesh(parse_mesh(SPEC), prune=False)
        running = await stack.enter_async_context(
            running_replica(handler, backend=ENDPOINT, controller=controller.address, tls_dir=directory, **replica)
        )
        mesh = TlsMesh(authority, controller, running.app)
        for number in range(routers):
            of_router = RouterSettings(
                port=0,
                metrics_port=-1,
                controller=controller.address,
                router_id=f"r{number}",
                tls_dir=directory,
                **of_routers,
            )
            server = await stack.enter_async_context(serve(of_router))
            mesh.routers.append(server.address)
            mesh.servers.append(server)
        await wait_until(lambda: _is_ready(controller, routers), what="all routers know all, and are linked")
        yield mesh


def _is_ready(controller: Controller, count: int) -> bool:
    routers, table = controller.state.observed.routers.values(), controller.board.table
    return (
        table is not None
        and len(routers) == len(table.routes.router_addresses) == count
        and all(router.linked_replica_ids and router.revision == table.revision for router in routers)
    )
