"""Commands whose connection breaks after the controller has stored the change: it is made once, and they say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controller_service.shell.changes.requests import MAX_REPLY_BYTES
from slotmesh.cli.commands.apply import apply
from slotmesh.cli.commands.scale import set_num_replicas
from slotmesh.cli.connection import Peer
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.operator import Operator
from slotmesh.errors import BackendNotFound, Executed, SlotmeshError
from slotmesh.server.info_servicer import InfoServicer
from slotmesh.server.server import GrpcServer
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import TrafficPolicy
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, info_service_pb2, info_service_pb2_grpc
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "app:One", num_replicas: 1}
  v2: {handler: "app:Two", num_replicas: 1}
  v3: {handler: "app:Three", num_replicas: 1}
endpoints:
  e: {traffic: {v1: 1.0}}
  idle:
routes:
  /e: {endpoint: e, method: classify}
"""
ALL_V2 = TrafficPolicy(weights={"v2": 1.0})


async def roll_back(operator: Operator) -> Any:
    (newest,) = await operator.revisions(1)
    return await operator.send(pb.RollbackRequest(change=newest.revision))


COMMANDS: dict[str, Callable[[Operator], Awaitable[Any]]] = {
    "roll back": roll_back,
    "apply": lambda operator: operator.apply(parse_mesh('backends: {v9: {handler: "app:New"}}')),
    "apply a file": lambda operator: operator.apply_file(parse_mesh('backends: {v9: {handler: "app:New"}}')),
    "set traffic": lambda operator: operator.set_traffic("e", ALL_V2, ["weights"]),
    "shift traffic": lambda operator: operator.send(shift_of("e")),
    "scale": lambda operator: set_num_replicas(operator, "v1", 3, dry_run=False),
    "delete a backend": lambda operator: operator.delete("backend/v3"),
    "delete an endpoint": lambda operator: operator.delete("endpoint/idle"),
    "delete a route": lambda operator: operator.delete("route/e"),
}


def shift_of(endpoint: str) -> pb.ShiftTrafficRequest:
    request = pb.ShiftTrafficRequest(endpoint=endpoint, weights={"v2": 1.0}, step=0.5)
    request.every.FromSeconds(3_600)
    return request


def cut_at_next_commit(mesh: Controlled, proxy: TcpProxy, *, is_back: bool = True) -> list[int]:
    """The connection breaks when a change is stored, before its reply is sent. Returns the revisions of changes."""
    revisions: list[int] = []

    def committed(before: Any, after: Any, _: Any) -> None:
        if after.configured_at == before.configured_at:
            return
        if not revisions:
            proxy.cut()
            if is_back:
                proxy.heal()
        revisions.append(after.configured_at)

    mesh.controller.store.listen(committed)
    return revisions


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_change_whose_reply_is_lost_is_made_once(command: str) -> None:
    async with running_controller() as mesh, tcp_proxy(mesh.controller.address) as proxy:
        await mesh.apply(MESH)
        await mesh.apply('backends: {v2: {handler: "app:Newer"}}')
        async with Operator.at(proxy.address) as operator:
            await operator.standing()
            revisions = cut_at_next_commit(mesh, proxy)
            reply = await COMMANDS[command](operator)
            assert len(revisions) == 1
            assert str(revisions[0]) in repr(reply), "the reply of the first time"

            async def is_published() -> bool:
                return (await operator.members()).table_revision >= revisions[0]

            await eventually(is_published, what="the change in what the command asks for next")


async def test_it_is_repeated_where_a_controller_leads_then() -> None:
    async with running_controller() as mesh:
        address = mesh.controller.address
        await mesh.apply(MESH)
        async with tcp_proxy(address) as first, tcp_proxy(address) as second:
            async with Operator.at(f"{first.address},{second.address}") as operator:
                revisions = cut_at_next_commit(mesh, first, is_back=False)
                assert await operator.set_traffic("e", ALL_V2, ["weights"]) == revisions[0]
                assert len(revisions) == 1
                assert second.is_used


async def test_a_refusal_is_not_repeated() -> None:
    async with running_controller() as mesh, Operator.at(mesh.controller.address) as operator:
        with pytest.raises(BackendNotFound):
            await operator.send(pb.RollbackRequest(backend="no"))


class SilentController(controller_service_pb2_grpc.ControllerServiceServicer):
    """The connection breaks before each reply."""

    def __init__(self) -> None:
        self.requests = list[pb.RollbackRequest]()
        self.leads = True
        self.proxy: TcpProxy | None = None

    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.RollbackResponse:
        self.requests.append(request)
        assert self.proxy is not None
        self.proxy.cut()
        self.proxy.heal()
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def silent_controller(silent: SilentController) -> AsyncIterator[str]:
    def amend(info: info_service_pb2.GetServerInfoResponse) -> None:
        info.controller.leads = silent.leads

    server = GrpcServer("silent")
    info = InfoServicer(info_service_pb2.SERVER_KIND_CONTROLLER, amend=amend)
    server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, info)
    server.add(controller_service_pb2_grpc.add_ControllerServiceServicer_to_server, silent)
    await server.start()
    try:
        async with tcp_proxy(server.address) as silent.proxy:
            yield silent.proxy.address
    finally:
        await server.stop()


async def test_a_request_is_repeated_once_with_the_same_id() -> None:
    silent = SilentController()  # type: ignore[abstract]  # it has one rpc
    async with silent_controller(silent) as address, Operator.at(address) as operator:
        with pytest.raises(CommandFailed, match=r"the connection to the controller at .* broke"):
            await operator.send(pb.RollbackRequest())
    first, second = silent.requests
    assert first.request_id
    assert first == second


async def test_a_controller_that_was_reached_and_does_not_respond_is_named() -> None:
    async with running_controller() as mesh, tcp_proxy(mesh.controller.address) as proxy:
        async with Operator.at(proxy.address) as operator:
            await operator.configuration()
            proxy.stall()
            named = rf"the controller at {proxy.address} was reached, and has not responded in time; a requested change"
            with pytest.raises(SlotmeshError, match=named) as overdue:
                await operator.send(pb.ListBackendsRequest(), 0.1)
            assert overdue.value.executed is Executed.UNKNOWN


async def test_one_channel_is_open_however_often_a_leader_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.cli.operator.BACK_WITHIN_S", 1.0)
    monkeypatch.setattr("slotmesh.cli.operator._LOOK_EVERY_S", 0.01)
    counts = {"open": 0, "most": 0, "all": 0}
    connect = Peer.connect

    @asynccontextmanager
    async def counted(peer: Peer) -> AsyncIterator[Any]:
        async with connect(peer) as channel:
            counts["open"] += 1
            counts["all"] += 1
            counts["most"] = max(counts["most"], counts["open"])
            try:
                yield channel
            finally:
                counts["open"] -= 1

    monkeypatch.setattr(Peer, "connect", counted)
    silent = SilentController()  # type: ignore[abstract]  # it has one rpc
    silent.leads = False
    async with silent_controller(silent) as address, Operator.at(address) as operator:
        with pytest.raises(CommandFailed):
            await operator.send(pb.RollbackRequest())
        assert counts["all"] > 3
        assert counts["most"] <= 2
    assert counts["open"] == 0


async def test_a_file_whose_long_reply_is_lost_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"endpoint-with-a-long-name-{number:04}" for number in range(MAX_REPLY_BYTES // 25)]
    lines = ['backends: {v1: {handler: "app:One", num_replicas: 1}}', "endpoints:", *(f"  {it}:" for it in names)]
    file = write(tmp_path / "mesh.yaml", "\n".join(lines))
    async with running_controller() as mesh, tcp_proxy(mesh.controller.address) as proxy:
        revisions = cut_at_next_commit(mesh, proxy)
        with pytest.raises(CommandFailed, match=r"v1"):
            await apply(file, wait=True, timeout=timedelta(seconds=0.5), address=proxy.address)
        assert len(revisions) == 1
        out = capsys.readouterr().out
        assert f"created   endpoint/{names[-1]}\n" in out
        assert f"revision  {revisions[0]}\n" in out


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
