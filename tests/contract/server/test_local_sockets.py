"""Servers with an incarnation listen on a local socket as well; clients that know it connect there, if it is here."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router_service.shell.replicas.channel import ReplicaChannel
from slotmesh.runtime import channels
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.server import server as server_module
from slotmesh.server.server import GrpcServer
from slotmesh.transport import local_sockets
from slotmesh.transport.current_channel import CurrentChannel
from slotmesh.v1 import router_service_pb2
from tests.contract.server.served_router import Context, Router, Setting, call, serving
from tests.support.certificates import Authority
from tests.support.replicas import running_replica

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not local_sockets.EXIST, reason="sockets with a name and no file exist on Linux only"),
]


@asynccontextmanager
async def channel_to(address: str, incarnation: str, role: Role = Role.REPLICA) -> AsyncIterator[CurrentChannel]:
    channel = CurrentChannel(Dialer(), address, role, incarnation=incarnation)
    try:
        yield channel
    finally:
        await channel.aclose()


@asynccontextmanager
async def listening_locally() -> AsyncIterator[Setting]:
    def prepare(server: GrpcServer) -> None:
        server.listen_locally("i1")

    async with serving(prepare) as setting:
        yield setting


def note_peers(router: Router) -> list[str]:
    """The peers of the unary rpcs that the servicer answers from now on, without their ports."""
    peers: list[str] = []

    async def answer(request: Any, context: Context) -> Any:
        peers.append(context.peer().partition(":")[0])
        return router_service_pb2.CallResponse(payload=request.payload)

    router.unary = answer
    return peers


async def test_a_client_that_knows_the_incarnation_connects_by_the_local_socket() -> None:
    async with listening_locally() as (server, router, by_port):
        peers = note_peers(router)
        async with channel_to(server.address, "i1") as channel:
            assert (await call(channel.get())).payload == b"x"
        await call(by_port)
    assert peers == ["unix", "ipv4"]
    assert not local_sockets.local_target("i1", server.address), "the socket is closed with the server"


@pytest.mark.parametrize("known", ["", "i2"])
async def test_others_connect_by_the_address(known: str) -> None:
    async with listening_locally() as (server, router, _), channel_to(server.address, known) as channel:
        peers = note_peers(router)
        await call(channel.get())
        assert peers == ["ipv4"]


async def test_another_port_is_another_address() -> None:
    """As that of a proxy in front of the server."""
    async with listening_locally() as (server, _, _):
        assert not local_sockets.local_target("i1", f"127.0.0.1:{server.port - 1}")


async def test_a_process_of_another_user_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening_locally() as (server, router, _):
        monkeypatch.setattr(local_sockets, "_ROOT", -1)
        assert local_sockets.local_target("i1", server.address), "it is the same user's"
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
        async with channel_to(server.address, "i1") as channel:
            peers = note_peers(router)
            await call(channel.get())
        assert peers == ["ipv4"]
        monkeypatch.setattr(local_sockets, "_ROOT", user - 1)
        assert local_sockets.local_target("i1", server.address), "it is root's"


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]", "replica.example"])
async def test_a_process_here_does_not_get_the_calls_of_a_server_elsewhere(host: str) -> None:
    async with listening_locally() as (server, _, _):
        assert not local_sockets.local_target("i1", f"{host}:{server.port}")
        assert local_sockets.local_target("i1", f"localhost:{server.port}")


async def test_a_client_that_may_have_no_local_socket_connects_by_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocal(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any, **named: Any) -> None:
            if family == socket.AF_UNIX:
                raise OSError(errno.EAFNOSUPPORT, "as where a sandbox allows only sockets of IP")
            super().__init__(family, *arguments, **named)

    async with listening_locally() as (server, router, _), channel_to(server.address, "i1") as channel:
        peers = note_peers(router)
        monkeypatch.setattr(socket, "socket", NoLocal)
        await call(channel.get())
        assert peers == ["ipv4"]


async def test_a_server_that_may_have_no_local_socket_serves_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sockets, "_name", lambda *_: "x" * 200)  # longer than the kernel allows
    async with listening_locally() as (_, _, by_port):
        assert (await call(by_port)).payload == b"x"


async def test_connections_of_the_port_and_the_local_socket_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GRPC bounds those of each alone."""
    made: list[dict[str, Any]] = []

    def noted(*arguments: Any) -> Any:
        made.append(dict(channels.server_options(*arguments)))
        return channels.server_options(*arguments)

    monkeypatch.setattr(server_module, "server_options", noted)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    async with listening_locally(), serving():
        assert [each["grpc.max_allowed_incoming_connections"] for each in made] == [256, 512]


async def test_certificates_are_checked_there_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path / "mesh")
    authority.whole_mesh()
    dialer = Dialer(authority.source("router"))
    for kind, name, is_right in (("replica", "words", True), ("replica", "letters", False), ("router", "", False)):
        async with running_tls_server(authority, kind, name) as address:
            replica: Any = SimpleNamespace(
                address=address, backend=SimpleNamespace(name="words"), replica_id="r1", key=("r1", "i1")
            )
            channel = ReplicaChannel(replica, dialer)
            assert local_sockets.local_target("i1", address)
            assert await channel.is_serving() is is_right
            await channel.aclose()
            explained = any("names no replica of this mesh" in record.getMessage() for record in caplog.records)
            assert explained is not is_right
            caplog.clear()


@asynccontextmanager
async def running_tls_server(authority: Authority, kind: str, name: str) -> AsyncIterator[str]:
    server = GrpcServer("replica", tls=authority.source(kind, name))
    server.listen_locally("i1")
    await server.start()
    server.set_serving()
    try:
        yield server.address
    finally:
        await server.stop()


async def test_a_replica_has_one_unless_it_advertises_another_address() -> None:
    for advertise, is_local in ((None, True), ("127.0.0.1", False)):
        async with running_replica(advertise=advertise) as replica:
            found = local_sockets.local_target(replica.app.identity.incarnation, replica.address)
            assert bool(found) is is_local
