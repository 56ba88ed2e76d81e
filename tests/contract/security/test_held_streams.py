"""Streams end UNAUTHENTICATED, soon after who opened them is no longer known; what serves them is told as ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from slotmesh.security.authentication import Authorizer
from slotmesh.security.identity import Identity, Role
from slotmesh.server.server import GrpcServer
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, router_service_pb2, router_service_pb2_grpc
from tests.contract.security.role_servers import KnownTokens, error_info
from tests.support.certificates import TRUST_DOMAIN
from tests.support.wait import wait_until

EVE = Identity(name="token/eve", roles=frozenset({Role.OPERATOR}))
METADATA = (("authorization", "Bearer eve"),)
Context = grpc.aio.ServicerContext[Any, Any]


class Routing(router_service_pb2_grpc.RouterServiceServicer):
    """Streams that last."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def StreamCalls(self, requests: Any, context: Context) -> None:  # type: ignore[override]
        try:
            await context.write(router_service_pb2.StreamCallsResponse())
            while await context.read() is not grpc.aio.EOF:
                pass
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise


class Control(controller_service_pb2_grpc.ControllerServiceServicer):
    """Logs without end."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def ReadLogs(self, request: Any, context: Context) -> AsyncIterator[pb.ReadLogsResponse]:
        try:
            while True:
                yield pb.ReadLogsResponse()
                await asyncio.Event().wait() if request.follow else await asyncio.sleep(0)
        finally:
            self.ended.append("closed")


class Mesh:
    """A server with both, and a channel to it."""

    def __init__(self, eve: Identity = EVE) -> None:
        self.tokens = KnownTokens(eve=eve)
        self.authorizer = Authorizer(TRUST_DOMAIN, self.tokens)
        self.routing, self.control = Routing(), Control()  # type: ignore[abstract]  # no other rpc is called
        self.server = GrpcServer("streams", authorizer=self.authorizer)
        self.streams = self.server.edge.streams
        self.streams.look_s = 0.05
        self.server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, self.routing)
        self.server.add(controller_service_pb2_grpc.add_ControllerServiceServicer_to_server, self.control)

    async def __aenter__(self) -> Mesh:
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(self.server.address)
        self.calls: Any = router_service_pb2_grpc.RouterServiceStub(self.channel)
        self.logs: Any = controller_service_pb2_grpc.ControllerServiceStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop()


async def end_of(call: Any) -> grpc.aio.AioRpcError:
    """How the stream ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call)
    return caught.value


async def read_all(call: Any) -> None:
    async with asyncio.timeout(20.0):
        while await call.read() is not grpc.aio.EOF:
            pass


def is_lapsed(error: grpc.aio.AioRpcError) -> bool:
    info = error_info(error)
    return error.code() is grpc.StatusCode.UNAUTHENTICATED and info.metadata["executed"] == "unknown"


@pytest.mark.asyncio
async def test_a_token_that_is_revoked_ends_its_streams() -> None:
    async with Mesh() as mesh:
        stream = mesh.calls.StreamCalls(metadata=METADATA)
        await stream.write(router_service_pb2.StreamCallsRequest())
        await stream.read()
        silent = mesh.logs.ReadLogs(pb.ReadLogsRequest(follow=True), metadata=METADATA)
        busy = mesh.logs.ReadLogs(pb.ReadLogsRequest(), metadata=METADATA)
        await silent.read()
        await busy.read()
        del mesh.tokens.identities["eve"]
        assert all([is_lapsed(await end_of(each)) for each in (stream, silent, busy)])
        await wait_until(lambda: (mesh.routing.ended, mesh.control.ended) == (["cancelled"], ["closed"] * 2))
        assert not mesh.streams.open


@pytest.mark.asyncio
async def test_a_credential_that_expires_ends_its_streams() -> None:
    soon = Identity(name="token/eve", roles=frozenset({Role.INVOKER}), expires_at=time.time() + 0.2)
    async with Mesh(soon) as mesh:
        stream = mesh.calls.StreamCalls(metadata=METADATA)
        await stream.read()
        assert "has expired" in ((await end_of(stream)).details() or "")


@pytest.mark.asyncio
async def test_a_stream_that_is_ended_so_has_a_line_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")
    async with Mesh() as mesh:
        mesh.tokens.identities["eve"] = who = Identity(name="token/ended", roles=frozenset({Role.INVOKER}))
        stream = mesh.calls.StreamCalls(metadata=METADATA)
        await stream.read()
        del mesh.tokens.identities["eve"]
        await end_of(stream)
    said = [record.getMessage() for record in caplog.records if who.name in record.getMessage()]
    (line,) = said
    assert line.startswith("denied who=token/ended method=slotmesh.v1.RouterService/StreamCalls reason=UNAUTHENTICATED")
    assert line.endswith(" why=its stream ends: the token of token/ended holds no longer")


@pytest.mark.asyncio
async def test_streams_of_others_go_on() -> None:
    async with Mesh() as mesh:
        mesh.tokens.identities["bob"] = Identity(name="token/bob", roles=frozenset({Role.INVOKER}))
        bobs = mesh.calls.StreamCalls(metadata=(("authorization", "Bearer bob"),))
        eves = mesh.calls.StreamCalls(metadata=METADATA)
        await asyncio.gather(bobs.read(), eves.read())
        del mesh.tokens.identities["eve"]
        await end_of(eves)
        await bobs.done_writing()
        assert await bobs.read() is grpc.aio.EOF
        assert await bobs.code() is grpc.StatusCode.OK


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_is_ended_as_well() -> None:
    async with Mesh() as mesh:
        busy = mesh.logs.ReadLogs(pb.ReadLogsRequest(), metadata=METADATA)
        await busy.read()
        await wait_until(lambda: mesh.streams.open)
        del mesh.tokens.identities["eve"]
        await wait_until(lambda: mesh.control.ended and not mesh.streams.open)
