"""Bearer tokens of clients: with each rpc to routers and controllers, asked for anew, and nowhere else."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from slotmesh import SlotmeshError, Tls, connect, connect_sync
from slotmesh.cli.app import app
from slotmesh.client.routers import Routers
from slotmesh.codec import OCTET_STREAM
from slotmesh.discovery.targets import DnsName
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import Dialer, TokenSource
from slotmesh.security.identity import Role
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.v1 import router_service_pb2
from tests.support.certificates import Authority
from tests.support.fakes.router import FakeRouter
from tests.support.foreign_code import KINDS

pytestmark = pytest.mark.asyncio


class Asked(grpc.GenericRpcHandler):
    """Knows no rpc, and remembers what came with each."""

    def __init__(self) -> None:
        self.shown: defaultdict[str, list[Any]] = defaultdict(list)
        """Name of the rpc -> `authorization` of each that came."""
        self.address = ""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        method = handler_call_details.method.rpartition("/")[2]
        metadata = dict(handler_call_details.invocation_metadata or ())
        self.shown[method].append(metadata.get("authorization"))


class Issuer:
    """Gives another token each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"token-{self.count}"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest_asyncio.fixture
async def asked(authority: Authority) -> AsyncIterator[Asked]:
    handler, server = Asked(), grpc.aio.server()
    files = authority.issue("router", dns=["127.0.0.1"])
    assert files.cert is not None
    assert files.key is not None
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    server.add_generic_rpc_handlers([handler])
    handler.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', grpc.ssl_server_credentials([pair]))}"
    await server.start()
    yield handler
    await server.stop(None)


async def test_each_rpc_carries_a_token_of_its_own(authority: Authority, asked: Asked) -> None:
    issuer = Issuer()
    async with connect(asked.address, tls=Tls(authority.ca), token=issuer) as client:
        endpoint = client.endpoint("e")
        for call in (endpoint.m(), endpoint.m.unary(), endpoint.m.unary()):
            with pytest.raises(SlotmeshError):
                await call
        with pytest.raises(SlotmeshError):
            await anext(endpoint.m.unary_stream())
        with pytest.raises(SlotmeshError):
            async with endpoint.reserve():
                pass
        with pytest.raises(SlotmeshError):
            await client.endpoints()
    assert set(asked.shown) == {"StreamCalls", "Call", "CallStreaming", "ReserveSlot", "DescribeEndpoints"}
    shown = [each for of_rpc in asked.shown.values() for each in of_rpc]
    assert sorted(shown) == sorted(f"Bearer token-{number}" for number in range(1, issuer.count + 1))


async def test_threads_and_commands_show_it_too(authority: Authority, asked: Asked, tmp_path: Path) -> None:
    def call() -> None:
        with connect_sync(asked.address, tls=Tls(authority.ca), token="from-a-thread") as client:
            with suppress(SlotmeshError):
                client.endpoint("e").m()

    await asyncio.to_thread(call)
    assert set(asked.shown.pop("StreamCalls")) == {"Bearer from-a-thread"}
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("from-a-file\n")
    flags = ("call", "e", "m", "--address", asked.address, "--tls-ca", str(authority.ca))
    runner = CliRunner(env={"SLOTMESH_TOKEN": "from-a-variable"})
    assert (await asyncio.to_thread(runner.invoke, app, [*flags, "--token-file", str(file)])).exit_code == 1
    assert (await asyncio.to_thread(runner.invoke, app, [*flags])).exit_code == 1
    assert asked.shown["Call"] == ["Bearer from-a-file", "Bearer from-a-variable"]


async def test_replicas_are_not_shown_it(authority: Authority, asked: Asked) -> None:
    """They run code of handlers."""
    authority.issue("replica", stem="router")
    for role, expected in ((Role.CONTROLLER, "Bearer t"), (Role.ROUTER, "Bearer t"), (Role.REPLICA, None)):
        dialer = Dialer(_AddressChecked(authority), TokenSource("t"))
        async with dialer.open(asked.address, role) as channel:
            rpc: Any = channel.unary_unary("/s/M", request_serializer=bytes, response_deserializer=bytes)
            with pytest.raises(grpc.RpcError):
                await rpc(b"", metadata=(("x", "y"),))
        assert asked.shown.pop("M") == [expected]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_token_that_cannot_be_had_fails_the_call_and_nothing_else(
    authority: Authority, asked: Asked, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)

    async with connect(asked.address, tls=Tls(authority.ca), token=KINDS[kind], connect_timeout=0.2) as client:
        endpoint = client.endpoint("e")
        for call in (endpoint.m, endpoint.m.unary):
            with pytest.raises(SlotmeshError) as caught:
                await call()
            assert caught.value.reason is Reason.UNAUTHENTICATED
            assert caught.value.executed is Executed.NO
            assert f"the function that gives the token raised {kind}" in str(caught.value)
        with pytest.raises(SlotmeshError, match=f"raised {kind}"):
            await anext(endpoint.m.unary_stream())
        with pytest.raises(SlotmeshError, match=f"raised {kind}"):
            async with endpoint.reserve():
                pass
    assert not asked.shown
    assert "by foreign code" not in caplog.text


async def test_what_can_be_no_token_is_refused_before_anything_is_sent(authority: Authority) -> None:
    tls = Tls(authority.ca)
    with pytest.raises(ValueError, match="token needs TLS: without it, the token is readable"):
        connect("127.0.0.1:1", token="t")
    for token in ("", "two words", "line\nend", "ü", "a" * 10_000):
        with pytest.raises(ValueError, match="the token is none that can be sent"):
            connect("127.0.0.1:1", tls=tls, token=token)
    with pytest.raises(TypeError, match="token must be a str, or a function"):
        connect("127.0.0.1:1", tls=tls, token=b"t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tls must be a slotmesh\.Tls, got str"):
        connect("127.0.0.1:1", tls="ca.crt")  # type: ignore[arg-type]
    client = connect("127.0.0.1:1", tls=tls, token="s3cr3t")
    assert "s3cr3t" not in repr(client) + repr(vars(client)) + repr(TokenSource("s3cr3t"))


class _AddressChecked:
    """Trusts the authority, and checks the address only."""

    version = 1
    trust_domain = ""
    identity = ""

    def __init__(self, authority: Authority) -> None:
        self._ca = authority.ca.read_bytes()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._ca)


@pytest.mark.parametrize("is_let_in", [True, False])
async def test_a_stream_whose_credential_has_ended_is_opened_again_with_what_is_newest(is_let_in: bool) -> None:
    """Where that is refused as well, calls fail with its words."""
    ended = Failure(reason=Reason.UNAUTHENTICATED, message="the credential of client/a has expired")
    async with FakeRouter() as router, connect(router.address) as client:
        router.held = True
        waiting = client.endpoint("e").options(content_type=OCTET_STREAM).echo(b"x")
        await router.until(lambda: router.calls() == 1)
        router.refusal = None if is_let_in else ended
        router.held = False
        for stream in router.streams:
            stream.end(ended)
        if is_let_in:
            assert await waiting == b"x"
        else:
            with pytest.raises(SlotmeshError, match="has expired") as caught:
                await waiting
            assert caught.value.reason is Reason.UNAUTHENTICATED


async def test_servers_of_a_name_are_verified_by_their_role_or_else_by_that_name(authority: Authority) -> None:
    """The certificate of the role has no address in it; one of a public authority has the name."""
    handler, server = Asked(), grpc.aio.server()
    files = authority.issue("router", dns=["routers.example"])
    assert files.cert is not None
    assert files.key is not None
    credentials = grpc.ssl_server_credentials([(files.key.read_bytes(), files.cert.read_bytes())])
    server.add_generic_rpc_handlers([handler])
    port = server.add_secure_port("127.0.0.2:0", credentials)
    await server.start()

    async def lookup(_: DnsName) -> list[str]:
        return ["127.0.0.2"]

    by_role, by_name = Dialer(authority.source("client", "a")), Dialer(_AddressChecked(authority))
    try:
        for dialer, name, is_reached in (
            (by_role, "any.name", True),
            (by_name, "routers.example", True),
            (by_name, "other.example", False),
        ):
            async with ServerAddresses(f"dns:///{name}:{port}", lookup=lookup) as servers:
                routers = Routers(servers, dialer)
                assert await routers.found(10)
                stub = routers.stub(f"127.0.0.2:{port}")
                with suppress(grpc.RpcError):
                    await stub.Call(router_service_pb2.CallRequest(), timeout=30)
                assert bool(handler.shown.pop("Call", None)) is is_reached, name
                await routers.aclose()
    finally:
        await server.stop(None)
