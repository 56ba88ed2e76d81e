"""Servers by TLS: who can connect to which port, and certificates that change while streams are open."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.config import SettingsError
from slotmesh.errors import Reason
from slotmesh.runtime.channels import CHANNEL_OPTIONS, PLAIN_TEXT, Dialer
from slotmesh.security.identity import Role
from slotmesh.security.secret_files import LOOK_S
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.server.server import GrpcServer
from slotmesh.units import parse_host_port
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import STREAM, Router, StatusCode, call, failure
from tests.support.certificates import Authority

pytestmark = pytest.mark.asyncio
PAST = datetime.now(UTC) - timedelta(minutes=1)


class Served:
    """A router by TLS, and the time by which it looks at its files."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.now = 0.0
        self.tls = TlsSource(authority.issue("router"), now=lambda: self.now)
        self.server = GrpcServer("router", tls=self.tls, token_port=0)
        self.server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router())

    def open(self, tls: TlsSource | None, role: Role = Role.ROUTER, *, by_token: bool = False) -> grpc.aio.Channel:
        address = self.server.token_address if by_token else self.server.address
        assert address is not None
        return Dialer(tls).open(address, role)

    async def code(self, tls: TlsSource | None, role: Role = Role.ROUTER, *, by_token: bool = False) -> StatusCode:
        """How a call ends that somebody makes, who is refused."""
        async with self.open(tls, role, by_token=by_token) as channel:
            return (await failure(call(channel)))[0]

    def shown(self, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2, files: TlsFiles | None = None) -> bytes | None:
        """The certificate that the server shows in a handshake of this version, in DER form. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        if files is not None:
            assert files.cert is not None
            context.load_cert_chain(files.cert, files.key)
        host, port = parse_host_port(self.server.address)
        with socket.create_connection((host, port), timeout=30) as plain, context.wrap_socket(plain) as secured:
            return secured.getpeercert(binary_form=True)


@asynccontextmanager
async def serving(authority: Authority) -> AsyncIterator[Served]:
    served = Served(authority)
    await served.server.start()
    try:
        yield served
    finally:
        await served.server.stop()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """Another authority, of the same trust domain."""
    return Authority(tmp_path / "stranger")


async def test_who_has_a_certificate_of_the_mesh_may_call(authority: Authority) -> None:
    async with serving(authority) as served, served.open(authority.source("client", "alice")) as channel:
        assert (await call(channel)).payload == b"x"


async def test_without_a_certificate_there_is_no_connection(authority: Authority) -> None:
    async with serving(authority) as served:
        assert await served.code(TlsSource(TlsFiles(authority.ca))) is StatusCode.UNAVAILABLE


async def test_at_the_port_for_tokens_who_shows_none_is_not_let_in(authority: Authority) -> None:
    async with (
        serving(authority) as served,
        served.open(TlsSource(TlsFiles(authority.ca)), by_token=True) as channel,
    ):
        code, found = await failure(call(channel))
        assert (code, found.reason) == (StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)


async def test_certificates_of_another_authority_are_refused_both_ways(
    authority: Authority, stranger: Authority
) -> None:
    foreign = stranger.issue("client", "alice")
    known = authority.issue("client", "alice")
    async with serving(authority) as served:
        mixed = TlsSource(TlsFiles(authority.ca, foreign.cert, foreign.key))
        assert await served.code(mixed) is StatusCode.UNAVAILABLE
        distrustful = TlsSource(TlsFiles(stranger.ca, known.cert, known.key))
        assert await served.code(distrustful) is StatusCode.UNAVAILABLE


async def test_a_certificate_that_has_expired_is_refused(authority: Authority) -> None:
    files = authority.issue("client", "alice", not_after=PAST)
    assert files.cert is not None
    assert files.key is not None
    credentials = grpc.ssl_channel_credentials(files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes())
    name = ("grpc.ssl_target_name_override", "router.mesh.test")
    async with (
        serving(authority) as served,
        grpc.aio.secure_channel(served.server.address, credentials, options=[*CHANNEL_OPTIONS, name]) as channel,
    ):
        assert (await failure(call(channel)))[0] is StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_trust_domain_is_nobodys(authority: Authority) -> None:
    files = authority.issue("client", "alice", uri="spiffe://other.test/client/alice", dns=["a.example"])
    assert files.cert is not None
    assert files.key is not None
    credentials = grpc.ssl_channel_credentials(files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes())
    name = ("grpc.ssl_target_name_override", "router.mesh.test")
    async with (
        serving(authority) as served,
        grpc.aio.secure_channel(served.server.address, credentials, options=[*CHANNEL_OPTIONS, name]) as channel,
    ):
        assert (await failure(call(channel)))[0] is StatusCode.UNAUTHENTICATED


async def test_a_server_of_another_role_is_not_taken_for_one_of_this(authority: Authority) -> None:
    async with serving(authority) as served:
        assert await served.code(authority.source("client", "alice"), Role.CONTROLLER) is StatusCode.UNAVAILABLE


async def test_plain_text_and_tls_do_not_meet(authority: Authority) -> None:
    async with serving(authority) as served:
        for by_token in (False, True):
            assert await served.code(None, by_token=by_token) is StatusCode.UNAVAILABLE
    bare = GrpcServer("bare")
    await bare.start()
    async with Dialer(authority.source("client", "alice")).open(bare.address, Role.ROUTER) as channel:
        assert (await failure(call(channel)))[0] is StatusCode.UNAVAILABLE
    await bare.stop()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_versions_before_1_2_are_refused(authority: Authority) -> None:
    files = authority.issue("client", "alice")
    async with serving(authority) as served:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert await asyncio.to_thread(served.shown, version, files) is not None
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with pytest.raises(ssl.SSLError, match=r"(?i)EOF|version|alert"):
                await asyncio.to_thread(served.shown, version, files)


async def test_certificates_change_while_a_stream_goes_on(authority: Authority) -> None:
    files = authority.issue("client", "alice")
    async with serving(authority) as served, served.open(authority.source("client", "alice")) as channel:
        stream: Any = channel.stream_stream(STREAM)()
        request = router_service_pb2.StreamCallsRequest().SerializeToString()
        shown = {await asyncio.to_thread(served.shown, files=files)}
        for count in range(2, 5):
            await stream.write(request)
            assert await stream.read() is not grpc.aio.EOF
            authority.issue("router")
            served.now += LOOK_S
            shown.add(await asyncio.to_thread(served.shown, files=files))
            assert len(shown) == count
        async with served.open(authority.source("client", "bob")) as another:
            assert (await call(another)).payload == b"x"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_bad_files_leave_the_server_with_those_before(authority: Authority) -> None:
    async with serving(authority) as served:
        (authority.directory / "router.key").write_text("nothing")
        served.now += LOOK_S
        async with served.open(authority.source("client", "alice")) as channel:
            assert (await call(channel)).payload == b"x"


async def test_a_port_for_tokens_needs_tls() -> None:
    with pytest.raises(SettingsError, match="--token-port: tokens need TLS"):
        GrpcServer("router", token_port=0, insecure=True)
    assert PLAIN_TEXT.version == 0


async def test_handshakes_that_grpc_begins_are_counted_whether_they_succeed_or_not(authority: Authority) -> None:
    """Python is told neither which of them failed, nor for whom."""
    async with serving(authority) as each:
        before = each.tls.handshakes
        host, port = parse_host_port(each.server.address)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()
        assert each.tls.handshakes == before + 1
        await asyncio.to_thread(each.shown, files=authority.issue("client", "alice"))
        assert each.tls.handshakes == before + 2
