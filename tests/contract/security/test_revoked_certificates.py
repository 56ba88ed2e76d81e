"""A certificate is taken back: who has connected with it is refused in seconds, and nobody else notices."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.server.server import GrpcServer
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import Router, StatusCode
from tests.support.certificates import Authority
from tests.support.controllers import eventually

pytestmark = pytest.mark.asyncio
WITHIN_S: Final = 5.0
REVOKED: Final = "the certificate of client/alice was revoked"


class Caller:
    """Somebody with a connection that lasts."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        self.stream: Any = None

    async def code(self) -> tuple[StatusCode, str]:
        """How an rpc ends."""
        try:
            await self._stub.Call(router_service_pb2.CallRequest(payload=b"x"), timeout=30)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return StatusCode.OK, ""

    async def says(self) -> None:
        """On a stream, which goes on."""
        self.stream = self.stream or self._stub.StreamCalls()
        await self.stream.write(router_service_pb2.StreamCallsRequest())
        assert await self.stream.read() is not grpc.aio.EOF


@asynccontextmanager
async def router(authority: Authority) -> AsyncIterator[str]:
    server = GrpcServer("router", tls=authority.source("router"))
    server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router())
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@asynccontextmanager
async def connected(address: str, files: TlsFiles) -> AsyncIterator[Caller]:
    async with Dialer(TlsSource(files)).open(address, Role.ROUTER) as channel:
        yield Caller(channel)


async def test_who_was_revoked_is_refused_in_seconds_and_nobody_else(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    of_alice, of_bob = authority.issue("client", "alice"), authority.issue("client", "bob")
    async with router(authority) as address, connected(address, of_alice) as alice, connected(address, of_bob) as bob:
        await alice.says()
        await bob.says()
        authority.revoke(of_alice.cert)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(WITHIN_S):
                await alice.stream.read()
        assert (caught.value.code(), caught.value.details()) == (StatusCode.UNAUTHENTICATED, REVOKED)
        code, details = await alice.code()
        assert code is StatusCode.UNAUTHENTICATED
        assert details.endswith(REVOKED)
        await bob.says()
        assert await bob.code() == (StatusCode.OK, "")
        async with connected(address, of_alice) as again:
            assert (await again.code())[1].endswith(REVOKED), "a new connection"
        async with connected(address, authority.issue("client", "alice")) as with_another:
            assert await with_another.code() == (StatusCode.OK, "")


async def test_a_list_of_before_the_start_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the audit log says why: of somebody of whom it has had no line a moment ago."""
    authority = Authority(tmp_path)
    of_carol = authority.issue("client", "carol")
    authority.revoke(of_carol.cert)
    async with router(authority) as address, connected(address, of_carol) as carol:
        assert (await carol.code())[1].endswith("the certificate of client/carol was revoked")
    lines = [each.getMessage() for each in caplog.records if each.name == "slotmesh.audit"]
    assert any(re.search(r"why\W+the certificate of client/carol was revoked", each) for each in lines), lines


async def test_rpcs_alone_are_refused_too_after_a_silence(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    of_alice = authority.issue("client", "alice")
    async with router(authority) as address, connected(address, of_alice) as alice:
        assert await alice.code() == (StatusCode.OK, "")
        authority.revoke(of_alice.cert)

        async def is_refused() -> bool:
            return (await alice.code())[0] is StatusCode.UNAUTHENTICATED

        await eventually(is_refused, what="alice is refused", timeout=WITHIN_S)
