"""Controllers that share a state file, each with its whole life, in the process of the test."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from controller_service.config import ControllerSettings
from controller_service.process_life import ControllerLife
from controller_service.store.sqlite.state_lock import lock_path
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.security.identity import Role
from slotmesh.spec.document import parse_mesh
from slotmesh.telemetry.setup import setup_metrics
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import info_service_pb2
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from slotmesh.v1.info_service_pb2_grpc import InfoServiceStub
from tests.support.controllers import eventually
from tests.support.wait import wait_until


class LivingController:
    """One controller, whose replicas attach by themselves. Members need not report: their leases are long."""

    def __init__(self, state: Path | str, dialer: Dialer = PLAIN_TEXT, **settings: Any) -> None:
        """`dialer` connects the operator of the test."""
        self._dialer = dialer
        self._stack = AsyncExitStack()
        told = {"port": 0, "metrics_port": -1, "launcher": "external", "lease": "60s", "dead_after": "60s", **settings}
        self.settings = ControllerSettings.model_validate({"state": str(state), **told})
        self.stop = asyncio.Event()
        self.metrics = setup_metrics("slotmesh-controller", port=self.settings.metrics_port)
        self._stack.callback(self.metrics.shutdown)
        self.life = ControllerLife(self.settings, self.metrics, self.stop, self.settings.tls_source(Role.CONTROLLER))
        self.running = asyncio.ensure_future(self.life.run())

    async def __aenter__(self) -> Self:
        """Returns when it answers, as leader or standby."""
        await wait_until(lambda: self.running.done() or self.life.front.is_started, what="a controller that answers")
        if self.running.done():
            self.running.result()
        self.address = self.life.front.server.address
        self.channel: grpc.aio.Channel = await self._stack.enter_async_context(
            self._dialer.open(self.address, Role.CONTROLLER)
        )
        self.operator: Any = ControllerServiceStub(self.channel)
        self.info: Any = InfoServiceStub(self.channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop.set()
        await asyncio.gather(self.running, return_exceptions=True)
        await self._stack.aclose()

    async def end(self) -> int:
        """As SIGTERM does; returns the exit status."""
        self.stop.set()
        return await self.running

    async def apply(self, yaml: str) -> pb.ApplyMeshResponse:
        response: pb.ApplyMeshResponse = await self.operator.ApplyMesh(
            pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(yaml)))
        )
        return response

    async def standing(self) -> info_service_pb2.ControllerStanding:
        """As it says itself."""
        info: info_service_pb2.GetServerInfoResponse = await self.info.GetServerInfo(
            info_service_pb2.GetServerInfoRequest()
        )
        return info.controller

    async def leads(self, *standbys: str) -> info_service_pb2.ControllerStanding:
        """Returns once it leads, and knows of these that stand by."""

        async def look() -> info_service_pb2.ControllerStanding | None:
            now = await self.standing()
            return now if now.leads and tuple(now.standby_addresses) == standbys else None

        found = await eventually(look, what=f"{self.address} leads, with {standbys} behind it")
        assert found is not None
        return found


@asynccontextmanager
async def leader_and_standby(state: Path, **settings: Any) -> AsyncIterator[tuple[LivingController, LivingController]]:
    """The first one leads, and knows of the other."""
    async with LivingController(state, **settings) as leader:
        await leader.leads()
        async with LivingController(state, **settings) as standby:
            await leader.leads(standby.address)

            async def refers() -> bool:
                return (await standby.standing()).leader_address == leader.life.front.address

            await eventually(refers, what="the standby knows who leads")
            yield leader, standby


@contextmanager
def stolen_lock(state: Path) -> Iterator[None]:
    """Another process has put a lock file of its own in the place of the leader's."""
    other = state.with_name("other.lock")
    with other.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other.replace(lock_path(state))
        yield
