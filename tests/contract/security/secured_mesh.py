"""A mesh by TLS in the process of the test: a controller, a router and a replica, each as who its certificate names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc

from controller_service.app import open_controller
from controller_service.config import MEMORY, ControllerSettings
from controller_service.shell.launchers.protocol import Launcher
from router_service.app import serve
from router_service.config import RouterSettings
from router_service.core.limits.quotas import CallerQuotas
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.inference import grpc_inference_service_pb2 as inference_pb2
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Identity, Role
from slotmesh.server.rpc_gate import Edge
from slotmesh.server.server import GrpcServer
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import (
    controller_service_pb2_grpc,
    direct_service_pb2_grpc,
    router_service_pb2_grpc,
    slot_service_pb2_grpc,
    tap_service_pb2_grpc,
)
from tests.contract.security.role_servers import KnownTokens
from tests.support.certificates import Authority
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

BACKEND: Final = "echo-v1"
MESH: Final = f"""
backends:
  {BACKEND}:
    handler: tests.support.replica_handlers:Handler
endpoints:
  mine: {{traffic: {{{BACKEND}: 1.0}}}}
  theirs: {{traffic: {{{BACKEND}: 1.0}}}}
"""
ALICE: Final = Identity(name="client/alice", roles=frozenset({Role.INVOKER}), endpoints=frozenset({"mine", "absent"}))
ALICE_OF_OTHERS: Final = replace(ALICE, endpoints=frozenset({"theirs"}))
"""Another token of the same name."""
ALICE_OF_BOTH: Final = replace(ALICE, endpoints=frozenset({"mine", "theirs"}))
EVE: Final = Identity(name="client/eve", roles=frozenset({Role.INVOKER}))
VERA: Final = Identity(name="viewer/vera", roles=frozenset({Role.VIEWER}))


class Stubs:
    """The services behind one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.calls: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        self.inference: Any = GRPCInferenceServiceStub(channel)
        self.slots: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
        self.direct: Any = direct_service_pb2_grpc.DirectServiceStub(channel)
        self.taps: Any = tap_service_pb2_grpc.TapServiceStub(channel)
        self.controller: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)


@dataclass
class SecuredMesh:
    """Who may do what in it is asked by certificates and by tokens: `alice`, who may call `mine`; `eve` and `vera`."""

    authority: Authority
    controller: str
    router: GrpcServer
    replica: RunningReplica
    stack: AsyncExitStack
    controller_edge: Edge

    @property
    def router_quotas(self) -> CallerQuotas:
        """What one caller may have at the router."""
        quotas: CallerQuotas = self.router._servicers[0][1]._quotas
        return quotas

    async def stubs(
        self, address: str, role: Role, kind: str = "client", name: str = "alice", backend: str = ""
    ) -> Stubs:
        """Services of a server, as who has this certificate."""
        dialer = Dialer(self.authority.source(kind, name))
        return Stubs(await self.stack.enter_async_context(dialer.open(address, role, backend)))

    async def at_router(self, kind: str = "client", name: str = "nobody") -> Stubs:
        return await self.stubs(self.router.address, Role.ROUTER, kind, name)

    async def at_replica(self, kind: str = "client", name: str = "nobody") -> Stubs:
        return await self.stubs(self.replica.address, Role.REPLICA, kind, name, BACKEND)

    async def at_controller(self, kind: str = "operator", name: str = "ops") -> Stubs:
        return await self.stubs(self.controller, Role.CONTROLLER, kind, name)


def by_token(name: str) -> tuple[tuple[str, str], ...]:
    """The metadata of who has this token."""
    return (("authorization", f"Bearer {name}"),)


def greeting(endpoint: str) -> inference_pb2.ModelInferRequest:
    request = inference_pb2.ModelInferRequest(model_name=endpoint)
    request.parameters["method"].string_param = "greet"
    name = request.inputs.add(name="name", datatype="BYTES", shape=[1])
    name.contents.bytes_contents.append(b"x")
    return request


def accept_tokens(server: Any) -> None:
    """The server knows the tokens of alice, eve and vera."""
    more = {"alice-of-others": ALICE_OF_OTHERS, "alice-of-both": ALICE_OF_BOTH}
    server.edge.authorizer._tokens = KnownTokens(alice=ALICE, eve=EVE, vera=VERA, **more)


@asynccontextmanager
async def secured_mesh(folder: Path) -> AsyncIterator[SecuredMesh]:
    """All three, with the endpoints `mine` and `theirs`, ready."""
    authority = Authority(folder)
    tls_dir = authority.whole_mesh()
    settings = ControllerSettings(port=0, launcher="external", state=MEMORY, tls_dir=tls_dir)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        controller = await enter(open_controller(settings, lambda *_: Launcher()))
        address = controller.address
        router = await enter(
            serve(RouterSettings(controller=address, port=0, metrics_port=-1, tap_payloads=True, tls_dir=tls_dir))
        )
        member: dict[str, Any] = {"controller": address, "backend": BACKEND, "tls_dir": tls_dir}
        replica = await enter(running_replica(until_ready=False, **member))
        clients = await enter(AsyncExitStack())
        mesh = SecuredMesh(authority, address, router, replica, clients, controller.server.edge)
        operator = (await mesh.at_controller()).controller
        # On a busy machine the handshake takes longer than one attempt to connect may.
        request = pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(MESH)))
        await operator.ApplyMesh(request, wait_for_ready=True, timeout=20.0)
        await wait_until(lambda: router.serving and replica.app.replica.engine, timeout=20.0, what="ready")
        for server in (router, replica.app.server):
            accept_tokens(server)
        yield mesh
