"""The port for who has a token and no certificate: clients that come by it are told of such ports of other routers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from slotmesh import Tls, connect
from slotmesh.runtime.channels import Dialer, TokenSource
from slotmesh.security.identity import Role
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.v1 import router_service_pb2
from tests.support.certificates import Authority
from tests.support.tls_mesh import ENDPOINT, TlsMesh, tls_mesh
from tests.support.token_files import created

pytestmark = pytest.mark.asyncio
STREAM = "/slotmesh.v1.RouterService/StreamCalls"


async def alternates(channel: grpc.aio.Channel) -> list[str]:
    """Where the router tells a client to go that cannot stay."""
    opening = router_service_pb2.StreamCallsRequest(open=router_service_pb2.OpenStream(endpoint=ENDPOINT))
    stream: Any = channel.stream_stream(
        STREAM,
        request_serializer=router_service_pb2.StreamCallsRequest.SerializeToString,
        response_deserializer=router_service_pb2.StreamCallsResponse.FromString,
    )()
    await stream.write(opening)
    response = await stream.read()
    stream.cancel()
    return list(response.opened.alternates)


def token_addresses(mesh: TlsMesh) -> list[str]:
    return [each.token_address for _, each in sorted(mesh.controller.state.observed.routers.items())]


async def test_alternates_suit_the_port_that_a_client_came_by(tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path / "certs"), tmp_path / "tokens.json"
    token = created(tokens)
    async with tls_mesh(authority, routers=2, of_routers={"tokens": tokens, "token_port": 0}) as mesh:
        first, second = token_addresses(mesh)
        assert first
        assert {first, second}.isdisjoint(mesh.routers)
        by_token = Dialer(TlsSource(TlsFiles(authority.ca)), TokenSource(token))
        async with by_token.open(first, Role.ROUTER) as channel:
            assert await alternates(channel) == [second]
        by_both = Dialer(authority.source("client", "bob"), TokenSource(token))
        async with by_both.open(mesh.routers[0], Role.ROUTER) as channel:
            assert await alternates(channel) == mesh.routers[1:]
        async with connect(first, tls=Tls(ca=authority.ca), token=token) as client:
            assert await client.endpoint(ENDPOINT).echo(b"x") == b"x"


async def test_routers_without_such_a_port_have_none_to_tell(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certs")
    async with tls_mesh(authority) as mesh:
        assert token_addresses(mesh) == [""]
