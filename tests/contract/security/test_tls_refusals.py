"""Connections that certificates do not allow: what operators and applications read, and the way out in it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from slotmesh import DeadlineExceeded, Executed, Reason, RouterLost, Tls, connect, connect_sync
from slotmesh.cli.app import app
from slotmesh.client.tls import SystemTls
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.security.identity import Role
from slotmesh.security.tls import TlsFiles, TlsMaterial, TlsSource
from slotmesh.server.server import GrpcServer
from slotmesh.transport.connection_problems import connection_problem
from tests.support.certificates import Authority

PATIENCE_S = 60
"""Of tests, on a machine at any load."""

pytestmark = pytest.mark.asyncio

GIVE_CERTIFICATES = "it requires TLS: give certificates (--tls-dir"
IS_CERTAIN = "the server does not use plain text, it requires TLS"
TALKS_PLAIN_TEXT = "uses plain text, not TLS: start it with certificates, or leave yours out (--tls-dir"
GIVE_ONE = "as servers that require a certificate do, and none was given: give one (--tls-dir"
NO_CONTROLLER = "names no controller of this mesh (controller.mesh.test): check the address"
NOT_TRUSTED = "is not signed by an authority trusted here: give the mesh's own (ca.crt of --tls-dir"
HAS_EXPIRED = "the certificate of the server has expired: issue it again there (`slotmesh certs rotate`)"
NOT_ACCEPTED = "received the certificate of spiffe://mesh.test/operator/ops: that is not signed by an authority that"


class FilesOfBefore(TlsFiles):
    """Of a process that has read them two minutes ago, and has not found newer ones since."""

    def read(self, now: float | None = None, *, lists_of: TlsMaterial | None = None) -> TlsMaterial:
        return TlsFiles.read(self, time.time() - 120, lists_of=lists_of)


def expired(authority: Authority, kind: str, name: str = "") -> TlsSource:
    """Of a process whose certificate has ended a minute ago."""
    files = authority.issue(kind, name, not_after=datetime.now(UTC) - timedelta(minutes=1), stem="expired")
    return TlsSource(FilesOfBefore(files.ca, files.cert, files.key))


@dataclass(frozen=True, slots=True)
class Servers:
    """Routers without services but health."""

    ours: Authority
    others: Authority
    """Of another mesh of the same name."""
    by_tls: str
    in_plain_text: str
    expired: str


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    for each in (ours, others):
        each.issue("operator", "ops")
    async with AsyncExitStack() as stack:

        async def serve(tls: TlsSource | None) -> str:
            server = GrpcServer("router", tls=tls)
            await server.start()
            stack.push_async_callback(server.stop)
            server.set_serving()
            return server.address

        yield Servers(
            ours=ours,
            others=others,
            by_tls=await serve(ours.source("router")),
            in_plain_text=await serve(None),
            expired=await serve(expired(ours, "router")),
        )


async def details(dialer: Dialer, address: str, role: Role = Role.ROUTER) -> str:
    """What is said of an rpc that fails, or `OK`."""
    async with dialer.open(address, role) as channel:
        try:
            health: Any = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        except grpc.RpcError as error:
            return dialer.explained(error.details() or "", role)
    return "OK"


async def test_what_each_failed_handshake_means(servers: Servers) -> None:
    ours, others = servers.ours, servers.others
    ops, stranger = ours.source("operator", "ops"), others.source("operator", "ops")
    assert stranger.files.cert is not None
    unknown = TlsSource(TlsFiles(ours.ca, stranger.files.cert, stranger.files.key))
    said = {
        "OK": await details(Dialer(ops), servers.by_tls),
        GIVE_CERTIFICATES: await details(PLAIN_TEXT, servers.by_tls),
        TALKS_PLAIN_TEXT: await details(Dialer(ops), servers.in_plain_text),
        NO_CONTROLLER: await details(Dialer(ops), servers.by_tls, Role.CONTROLLER),
        NOT_TRUSTED: await details(Dialer(stranger), servers.by_tls),
        HAS_EXPIRED: await details(Dialer(ops), servers.expired),
        GIVE_ONE: await details(Dialer(TlsSource(TlsFiles(ours.ca))), servers.by_tls),
        NOT_ACCEPTED: await details(Dialer(unknown), servers.by_tls),
    }
    assert {expected: text for expected, text in said.items() if expected not in text} == {}
    assert NOT_ACCEPTED in await details(Dialer(expired(ours, "operator", "ops")), servers.by_tls)
    assert NOT_TRUSTED in await details(Dialer(SystemTls()), servers.by_tls)


async def test_what_is_not_for_certificates_keeps_its_words(servers: Servers) -> None:
    ops = Dialer(servers.ours.source("operator", "ops"))
    assert "Connection refused" in await details(ops, "127.0.0.1:1")

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "Handshake read failed" in await details(ops, f"127.0.0.1:{port}")


@pytest.mark.parametrize("kind", ["stream", "slots"])
async def test_applications_read_why(servers: Servers, kind: str) -> None:
    tls = Tls.from_dir(servers.ours.directory, "operator-ops")
    without = Tls.from_dir(servers.ours.directory)
    tries = ((None, servers.by_tls, GIVE_CERTIFICATES), (tls, servers.in_plain_text, TALKS_PLAIN_TEXT))
    for given, address, expected in (*tries, (without, servers.by_tls, GIVE_ONE)):
        async with connect(address, tls=given, connect_timeout=0.1) as client:
            endpoint = client.endpoint("e")
            with pytest.raises(RouterLost) as caught:
                await (endpoint.reserve().__aenter__() if kind == "slots" else endpoint.m())
            assert expected in str(caught.value)


@pytest.mark.parametrize("kind", ["stream", "slots", "several"])
async def test_a_client_that_cannot_connect_as_it_is_gives_up_early(servers: Servers, kind: str) -> None:
    """All of its calls, long before `connect_timeout`, with one query of the router at a time."""
    address = (
        f"{servers.by_tls},{servers.by_tls.replace('127.0.0.1', 'localhost')}" if kind == "several" else servers.by_tls
    )
    async with connect(address, connect_timeout=PATIENCE_S) as client:
        tries = [
            endpoint.reserve().__aenter__() if kind == "slots" else endpoint.m()
            for endpoint in (client.endpoint(f"e{number}") for number in range(3))
        ]
        for error in await asyncio.gather(*tries, return_exceptions=True):
            assert isinstance(error, RouterLost)
            assert error.executed is Executed.NO
            assert IS_CERTAIN in str(error)
            assert 2 <= float(str(error).partition(" within ")[2].partition(" s: ")[0]) < PATIENCE_S


@pytest.mark.parametrize("kind", ["stream", "slots"])
async def test_the_cause_is_named_where_a_name_has_several_addresses(servers: Servers, kind: str) -> None:
    """Nothing listens at localhost's ::1: what gRPC reports depends on which address has failed last."""
    port = servers.by_tls.rpartition(":")[2]
    others = Tls.from_dir(servers.others.directory, "operator-ops")
    for tls, expected in ((None, IS_CERTAIN), (others, NOT_TRUSTED)):
        async with connect(f"localhost:{port}", tls=tls, connect_timeout=PATIENCE_S) as client:
            endpoint = client.endpoint("e")
            with pytest.raises(RouterLost, match=f"no router answered at localhost:{port} within .* s: ") as caught:
                await (endpoint.reserve().__aenter__() if kind == "slots" else endpoint.m())
            assert expected in str(caught.value)


async def test_each_address_of_a_name_is_asked_if_the_channel_does_not_tell(servers: Servers) -> None:
    port = servers.by_tls.rpartition(":")[2]
    stranger = Dialer(servers.others.source("operator", "ops"))
    for dialer, expected in ((PLAIN_TEXT, IS_CERTAIN), (stranger, NOT_TRUSTED)):
        async with dialer.open("127.0.0.1:1", Role.ROUTER) as refused:
            found = await connection_problem(refused, f"localhost:{port}", dialer, Role.ROUTER)
            assert found is not None
            assert (expected in found.text, found.is_certain) == (True, True)
            assert await connection_problem(refused, servers.by_tls, dialer, Role.ROUTER) is None
    ops = Dialer(servers.ours.source("operator", "ops"))
    async with ops.open("127.0.0.1:1", Role.ROUTER) as refused:
        assert await connection_problem(refused, f"localhost:{port}", ops, Role.ROUTER) is None, "one is reached"
        assert await connection_problem(refused, f"none.invalid:{port}", ops, Role.ROUTER) is None


async def test_calls_whose_timeout_ends_first_name_the_cause() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server, asyncio.timeout(PATIENCE_S):
        address = f"localhost:{server.sockets[0].getsockname()[1]}"
        async with connect(address, connect_timeout=PATIENCE_S) as client:
            call, said = client.endpoint("e").m.options(timeout=0.5), ""
            while "could be sent: no router was reached: the server closed the connection before" not in said:
                with pytest.raises(DeadlineExceeded) as caught:
                    await call()
                assert (caught.value.reason, caught.value.executed) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)
                said = str(caught.value)


async def test_clients_without_asyncio_read_why(servers: Servers) -> None:
    def ask() -> str:
        with connect_sync(servers.by_tls, connect_timeout=0.1) as client, pytest.raises(RouterLost) as caught:
            client.endpoint("e").m()
        return str(caught.value)

    assert IS_CERTAIN in await asyncio.to_thread(ask)


async def test_a_server_that_may_be_starting_is_waited_for(servers: Servers) -> None:
    """A published port closes connections until the server behind it listens."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connect(address, connect_timeout=2.5) as client:
            with pytest.raises(RouterLost, match=r"within 2.5 s: .* may still be starting: try again"):
                await client.endpoint("e").m()


async def test_what_does_not_use_grpc_is_named(servers: Servers) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connect(address, connect_timeout=0.1) as client:
            for call in (client.endpoint("e").m(), client.endpoints()):
                with pytest.raises(
                    RouterLost, match=f"{address}.*: what answers there does not use gRPC: name the port"
                ):
                    await call


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    output: str


async def slotmesh(*arguments: object, **env: str) -> Ran:
    """A command, in a thread: it has an event loop of its own."""
    runner = CliRunner(env={"COLUMNS": "400", **env})
    result = await asyncio.to_thread(runner.invoke, app, [str(each) for each in arguments])
    return Ran(result.exit_code, result.output)


async def test_commands_connect_by_flags_and_by_variables(servers: Servers) -> None:
    directory, address = servers.ours.directory, servers.by_tls
    serving = Ran(0, f"{address} SERVING\n")
    cert, key = directory / "operator-ops.crt", directory / "operator-ops.key"
    assert await slotmesh("health", "--address", address, "--tls-dir", directory) == serving
    assert await slotmesh("health", "--address", address, SLOTMESH_TLS_DIR=str(directory)) == serving
    paths = ("--tls-ca", servers.ours.ca, "--tls-cert", cert, "--tls-key", key)
    assert await slotmesh("health", "--address", address, *paths) == serving


async def test_commands_say_why_they_cannot_connect(servers: Servers) -> None:
    directory = servers.ours.directory
    for arguments, expected in (
        (("status", "--address", servers.by_tls), IS_CERTAIN),
        (("status", "--address", servers.by_tls, "--tls-dir", directory), NO_CONTROLLER),
        (("call", "e", "m", "--address", servers.in_plain_text, "--tls-dir", directory), TALKS_PLAIN_TEXT),
        (("bench", "e", "m", "--address", servers.expired, "--tls-dir", directory), HAS_EXPIRED),
        (("call", "e", "m", "--address", servers.by_tls, "--tls-ca", servers.ours.ca), GIVE_ONE),
        (("health", "--address", servers.by_tls, "--tls-dir", servers.others.directory), NOT_TRUSTED),
    ):
        ran = await slotmesh(*arguments)
        assert (ran.status, expected in ran.output) == (1, True), ran


async def test_commands_refuse_what_they_cannot_show(servers: Servers, tmp_path: Path) -> None:
    directory, address = servers.ours.directory, servers.by_tls
    token = tmp_path / "token"
    token.write_text("s3cr3t\n")
    token.chmod(0o644)
    large, pipe = tmp_path / "large", tmp_path / "pipe"
    large.touch(mode=0o600)
    os.truncate(large, 1 << 21)
    os.mkfifo(pipe, 0o600)
    asked = ("health", "--address", address)
    for arguments, env, expected in (
        (("--tls-cert", directory / "operator-ops.crt"), {}, "--tls-key is required with --tls-cert"),
        (("--tls-dir", tmp_path / "none"), {}, "is no directory; name the directory that has ca.crt of the mesh"),
        ((), {"SLOTMESH_TOKEN": "s3cr3t"}, "a token is sent by TLS only"),
        (("--tls-dir", directory, "--token-file", token), {}, f"by others on this machine: `chmod 600 {token}`"),
        (("--tls-dir", directory, "--token-file", tmp_path / "none"), {}, f"{tmp_path}/none: there is no such file"),
        (("--tls-dir", directory, "--token-file", large), {}, "is larger than 1024 KiB, the limit"),
        (("--tls-dir", directory, "--token-file", pipe), {}, "has to be a plain file"),
        (("--tls-dir", directory), {"SLOTMESH_TOKEN": "s3cr3t two"}, "the token is none that can be sent"),
    ):
        ran = await slotmesh(*asked, *arguments, **env)
        assert (ran.status, expected in ran.output, "s3cr3t" in ran.output) == (2, True, False), ran
    servers.ours.issue("operator", "two")
    ran = await slotmesh(*asked, "--tls-dir", directory)
    assert (ran.status, "choose one with --tls-cert and --tls-key" in ran.output) == (2, True), ran


async def test_a_container_asks_after_its_own_health(servers: Servers, tmp_path: Path) -> None:
    """There is no other certificate in it than that of the service."""
    files = servers.ours.issue("router")
    assert files.cert is not None
    assert files.key is not None
    for source, name in ((files.ca, "ca.crt"), (files.cert, "router.crt"), (files.key, "router.key")):
        (tmp_path / name).write_bytes(source.read_bytes())
        (tmp_path / name).chmod(0o600)
    ran = await slotmesh("health", "--address", servers.by_tls, SLOTMESH_TLS_DIR=str(tmp_path))
    assert ran == Ran(0, f"{servers.by_tls} SERVING\n")
