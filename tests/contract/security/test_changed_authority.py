"""A mesh goes to another authority: who has connected by the old one is let in for as long as that is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
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

pytestmark = pytest.mark.asyncio
WITHIN_S: Final = 5.0
GONE: Final = "the certificate of client/alice is not signed by an authority that is trusted here now"


class Connected:
    """Somebody whose connection lasts, at a router whose files are changed."""

    def __init__(self, old: Authority, new: Authority, channel: grpc.aio.Channel, server: GrpcServer) -> None:
        self.old, self.new, self.server = old, new, server
        self.stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        self._old_ca = old.ca.read_bytes()

    def trust(self, *, old: bool = True, new: bool = True) -> None:
        """The router trusts these from now on, and its own certificate is of the new one."""
        pem = (self._old_ca if old else b"") + (self.new.ca.read_bytes() if new else b"")
        files = self.new.issue("router")
        assert files.key is not None
        assert files.cert is not None
        key, cert = files.key.read_bytes(), files.cert.read_bytes()
        for name, content in (("ca.crt", pem), ("router.key", key), ("router.crt", cert)):
            fresh = self.old.directory / f"{name}.new"
            fresh.touch(mode=0o600)
            fresh.write_bytes(content)
            fresh.replace(self.old.directory / name)

    async def code(self) -> tuple[StatusCode, str]:
        """How an rpc on the old connection ends."""
        try:
            await self.stub.Call(router_service_pb2.CallRequest(payload=b"x"), timeout=30)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
        return StatusCode.OK, ""

    async def stream(self) -> Any:
        opened = self.stub.StreamCalls()
        await self.says(opened)
        return opened

    async def says(self, stream: Any) -> None:
        """The stream goes on."""
        await stream.write(router_service_pb2.StreamCallsRequest())
        assert await stream.read() is not grpc.aio.EOF


@asynccontextmanager
async def connected(tmp_path: Path) -> AsyncIterator[Connected]:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    server = GrpcServer("router", tls=old.source("router"))
    server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router())
    await server.start()
    try:
        async with Dialer(old.source("client", "alice")).open(server.address, Role.ROUTER) as channel:
            yield Connected(old, new, channel, server)
    finally:
        await server.stop()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await holds():  # noqa: ASYNC110 - at the other end of a connection
            await asyncio.sleep(0.05)


async def test_who_is_of_no_authority_of_now_is_refused_in_seconds(tmp_path: Path) -> None:
    async with connected(tmp_path) as alice:
        stream = await alice.stream()
        alice.trust(old=False)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(WITHIN_S):
                await stream.read()
        assert (caught.value.code(), caught.value.details()) == (StatusCode.UNAUTHENTICATED, GONE)
        code, details = await alice.code()
        assert code is StatusCode.UNAUTHENTICATED
        assert details.endswith(f"RouterService/Call needs the role invoker or replica: {GONE}")


async def test_rpcs_alone_are_refused_too_after_a_silence(tmp_path: Path) -> None:
    async with connected(tmp_path) as alice:
        assert await alice.code() == (StatusCode.OK, "")
        alice.trust(old=False)

        async def is_refused() -> bool:
            return (await alice.code())[0] is StatusCode.UNAUTHENTICATED

        await until(is_refused)


async def test_nothing_ends_while_both_are_trusted(tmp_path: Path) -> None:
    async with connected(tmp_path) as alice:
        stream, tls = await alice.stream(), alice.server._tls
        assert tls is not None
        alice.trust()

        async def is_read() -> bool:
            return tls.version == 2

        await until(is_read)
        looked = alice.server.edge.streams
        looked._look()
        await alice.says(stream)
        assert await alice.code() == (StatusCode.OK, "")
        assert looked.cut.total() == 0
        stream.cancel()


async def test_certificates_between_the_authority_and_the_peers_count(tmp_path: Path) -> None:
    root, middle = Authority(tmp_path / "root"), Authority(tmp_path / "middle")
    middle.stand_below(root)
    server = GrpcServer("router", tls=root.source("router"))
    server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router())
    await server.start()
    files = middle.issue("client", "alice")
    tls = TlsSource(TlsFiles(root.ca, files.cert, files.key))
    try:
        async with Dialer(tls).open(server.address, Role.ROUTER) as channel:
            stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
            assert (await stub.Call(router_service_pb2.CallRequest(payload=b"x"), timeout=30)).payload
    finally:
        await server.stop()
