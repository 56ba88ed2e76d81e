"""A real controller over real gRPC, with a launcher of the test."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from controller_service.app import Controller, MakeLauncher, open_controller
from controller_service.config import MEMORY, ControllerSettings
from controller_service.shell.launchers.protocol import Instance, Launcher, mint_replica_id
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.runtime.channels import open_channel
from slotmesh.spec.devices import read_pools
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from tests.support.fakes.launcher import FakeLauncher
from tests.support.wait import pause_s, wait_until

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Controlled:
    """A controller, a channel to it and an operator's stub."""

    controller: Controller
    channel: grpc.aio.Channel
    operator: Any
    launcher: FakeLauncher | None

    async def apply(self, yaml: str, *, prune: bool = False) -> pb.ApplyMeshResponse:
        mesh = mesh_to_wire(parse_mesh(yaml))
        response: pb.ApplyMeshResponse = await self.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh, prune=prune))
        return response

    async def replicas(self) -> dict[str, Any]:
        """What ListReplicas says, by id."""
        response = await self.operator.ListReplicas(pb.ListReplicasRequest(whole_errors=True))
        return {replica.replica_id: replica for replica in response.replicas}

    async def wait_for_launches(self, count: int) -> list[str]:
        """Ids of what was launched, once there are that many."""
        launcher = self.launcher
        assert launcher is not None
        await wait_until(lambda: len(launcher.started) >= count, timeout=30.0, what=f"{count} launches")
        assert len(launcher.started) == count
        return [order.replica_id for order in launcher.started]


@asynccontextmanager
async def running_controller(
    *,
    launches: bool = False,
    lease_s: float = 60.0,
    port: int = 0,
    state: Path | None = None,
    found: Sequence[Instance] = (),
    heard_within_s: float = 0.0,
    **changes: Any,
) -> AsyncIterator[Controlled]:
    """A controller whose replicas attach by themselves, or are launched by a `FakeLauncher`. Port 0 is any free one.

    `found`: what the launcher finds running. `state` is the file of its store; without one it remembers nothing.
    `heard_within_s`: how long it waits for routers, where the store lists replicas. `changes`: other settings.
    """
    fakes: list[FakeLauncher] = []

    def make_fake(_address: str, on_exit: Any, _logs: Any) -> FakeLauncher:
        fakes.append(FakeLauncher(on_exit, mint_id=mint_replica_id, found=found))
        fakes[0].pools = read_pools(settings.devices) if settings.devices else None
        return fakes[0]

    make_launcher: MakeLauncher = make_fake if launches else lambda *_: Launcher()
    store = MEMORY if state is None else str(state)
    settings = ControllerSettings(port=port, launcher="process" if launches else "external", state=store)
    # Tests of silence do not wait for the shortest lease that operators can set.
    settings = settings.model_copy(update={"lease": timedelta(seconds=lease_s), **changes})
    async with open_controller(settings, make_launcher, heard_within_s=heard_within_s) as controller:
        channel = open_channel(controller.address)
        try:
            yield Controlled(controller, channel, ControllerServiceStub(channel), fakes[0] if fakes else None)
        finally:
            await channel.close()


def as_if_killed(state: Path, name: str = "after") -> Path:
    """A copy of a state file that is in use, as whoever starts after a SIGKILL of its controller finds it."""
    folder = state.with_name(f"{state.name}-{name}")
    folder.mkdir()
    shutil.copy(state, folder / state.name)
    return folder / state.name


async def eventually(ask: Callable[[], Awaitable[AnswerT]], *, what: str, timeout: float = 20.0) -> AnswerT:
    """The first true answer of somebody who has to be asked over the network."""
    began = time.monotonic()
    while not (answer := await ask()):
        waited_s = time.monotonic() - began
        assert waited_s < timeout, f"not within {timeout} s: {what} (last: {answer!r})"
        await asyncio.sleep(pause_s(waited_s))
    return answer


def violations(error: grpc.RpcError) -> dict[str, str]:
    """Field violations of a refused rpc."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an aio error quacks as a call
    assert status is not None
    for detail in status.details:
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad_request = error_details_pb2.BadRequest()
            detail.Unpack(bad_request)
            return {violation.field: violation.description for violation in bad_request.field_violations}
    return {}


async def undo_newest(mesh: Controlled, **terms: Any) -> pb.RollbackResponse:
    """Undoes the newest change."""
    newest = (await mesh.operator.ListRevisions(pb.ListRevisionsRequest(page_size=1))).revisions[0].revision
    response: pb.RollbackResponse = await mesh.operator.Rollback(pb.RollbackRequest(change=newest, **terms))
    return response
