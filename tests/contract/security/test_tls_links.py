"""The mesh's own connections: each goes to who has the certificate that the place asks for, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from controller_service.app import Controller, open_controller
from controller_service.config import ControllerSettings
from controller_service.shell.launchers.protocol import Launcher
from router_service.app import serve
from router_service.config import RouterSettings
from router_service.shell.replicas.channel import ReplicaChannel
from slotmesh.runtime.channels import Dialer
from slotmesh.server.server import GrpcServer
from slotmesh.v1 import controller_service_pb2
from tests.support.certificates import Authority
from tests.support.controllers import eventually
from tests.support.replicas import running_replica
from tests.support.standing_by import leader_and_standby
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    ours = Authority(tmp_path / "ours")
    ours.whole_mesh()
    return ours


def a_controller(authority: Authority, port: int = 0) -> AbstractAsyncContextManager[Controller]:
    settings = ControllerSettings(port=port, metrics_port=-1, launcher="external", tls_dir=authority.directory)
    return open_controller(settings, lambda *_: Launcher())


def a_router(controller: str, authority: Authority) -> AbstractAsyncContextManager[GrpcServer]:
    return serve(RouterSettings(port=0, metrics_port=-1, controller=controller, tls_dir=authority.directory))


def said(caplog: pytest.LogCaptureFixture, *parts: str) -> Callable[[], bool]:
    """Whether a line of the log has all of these."""
    return lambda: any(all(part in record.getMessage() for part in parts) for record in caplog.records)


async def test_a_router_talks_to_replicas_of_the_backend_alone(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever the table says that one is. It says so once."""
    dialer = Dialer(authority.source("router"))
    for kind, name, problem in (
        ("replica", "words", ""),
        ("replica", "", ""),
        ("replica", "letters", "names no replica of this mesh (words.replica.mesh.test)"),
        ("router", "", "names no replica of this mesh (words.replica.mesh.test)"),
    ):
        server = GrpcServer("replica", tls=authority.source(kind, name))
        await server.start()
        server.set_serving()
        route: Any = SimpleNamespace(
            address=server.address, backend=SimpleNamespace(name="words"), replica_id="r1", key=("r1", "i1")
        )
        channel = ReplicaChannel(route, dialer)
        caplog.clear()
        assert [await channel.is_serving() for _ in range(3)] == [not problem] * 3
        warnings = [record.getMessage() for record in caplog.records if "cannot be linked" in record.getMessage()]
        assert len(warnings) == bool(problem)
        assert all(problem in warning for warning in warnings)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.execute().read()
        assert problem in channel.explained(caught.value)
        await channel.aclose()
        await server.stop()


async def test_members_tell_why_no_controller_takes_them(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = Authority(tmp_path / "others")
    others.whole_mesh()
    unknown = "is not signed by an authority trusted here"
    async with a_controller(authority) as controller:
        async with a_router(controller.address, others):
            await wait_until(said(caplog, "controller link ended", unknown))
        flags: dict[str, Any] = {"controller": controller.address, "tls_dir": others.directory}
        async with running_replica(backend="words", until_ready=False, **flags):
            await wait_until(said(caplog, "no controller", unknown))
        assert not controller.state.observed.routers


async def test_members_come_back_with_certificates_of_a_new_authority(authority: Authority, tmp_path: Path) -> None:
    """All that connects again takes the newest: the old ones are refused by then."""
    directory = authority.directory
    async with _restarted_with(authority) as (first, restart):
        async with (
            a_router(first, authority),
            running_replica(backend="words", controller=first, tls_dir=directory, until_ready=False) as replica,
        ):
            new = Authority(directory)
            new.whole_mesh()
            controller = await restart()
            await wait_until(
                lambda: controller.state.observed.routers and controller.state.observed.replicas("words"),
                timeout=20,
                what="both are back",
            )
            (router,) = controller.state.observed.routers.values()
            assert router.address
            assert replica.app.server.address


async def test_a_router_follows_the_leader(authority: Authority, tmp_path: Path) -> None:
    """To whom the standby sends it; and to the standby, once that leads."""
    dialer = Dialer(authority.source("operator", "ops"))
    asked = controller_service_pb2.ListRoutersRequest()
    both = leader_and_standby(tmp_path / "state", dialer=dialer, tls_dir=authority.directory)
    async with both as (leader, standby):

        async def is_attached(where: Any) -> bool:
            try:
                return len((await where.operator.ListRouters(asked)).routers) == 1
            except grpc.RpcError:
                return False

        async with a_router(f"{standby.address},{leader.address}", authority):
            await eventually(lambda: is_attached(leader), what="the leader has the router")
            await leader.end()
            await eventually(lambda: is_attached(standby), what="the next leader has the router")


@asynccontextmanager
async def _restarted_with(authority: Authority) -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """A controller; `restart` ends it, and starts another one at its address."""
    stack = [a_controller(authority)]
    controller = await stack[0].__aenter__()

    async def restart() -> Controller:
        await stack.pop().__aexit__(None, None, None)
        stack.append(a_controller(authority, int(controller.address.rpartition(":")[2])))
        return await stack[0].__aenter__()

    try:
        yield controller.address, restart
    finally:
        await asyncio.shield(stack.pop().__aexit__(None, None, None))
