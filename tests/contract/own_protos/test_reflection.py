"""Tools without proto files: reflection at the router tells of users' services, as long as they are there."""

from __future__ import annotations

import json
from typing import Any

import pytest

import slotmesh.testing
from examples.own_proto import greeter_pb2
from examples.own_proto.app import Greeter
from tests.contract.own_protos.greeters import SERVICE, greeting, opened
from tests.support.console import Command
from tests.support.grpc_tools import Terminal, need_tools

pytestmark = pytest.mark.asyncio


async def said(address: str, text: str) -> str:
    return await Terminal({"ROUTER": address}).run(Command("", text, ""))


async def test_grpcurl_lists_describes_and_calls_them_by_name() -> None:
    need_tools()
    async with greeting(Greeter) as (mesh, _):
        (router,) = mesh.router_addresses
        call = "grpcurl -plaintext -d @ ROUTER"

        assert SERVICE in (await said(router, "grpcurl -plaintext ROUTER list")).split()
        assert "slotmesh.v1.RouterService" in await said(router, "grpcurl -plaintext ROUTER list")
        assert "rpc Chat ( stream" in await said(router, f"grpcurl -plaintext ROUTER describe {SERVICE}")
        greeted = await said(router, f"""echo '{{"name": "Ada"}}' | {call} {SERVICE}/Greet""")
        assert json.loads(greeted) == {"text": "Hello, Ada!"}
        both = """echo '{"name": "Ada"} {"name": "Grace"}' |"""
        assert json.loads(await said(router, f"{both} {call} {SERVICE}/GreetAll")) == {"text": "Hello, Ada and Grace!"}
        chat = await said(router, f"{both} {call} {SERVICE}/Chat")
        assert "Hello, Ada!" in chat
        assert "Hello, Grace!" in chat
        assert "InvalidArgument" in await said(router, f"echo '{{}}' | {call} {SERVICE}/Greet")


async def test_ghz_loads_them_by_name() -> None:
    need_tools()
    async with greeting(Greeter) as (mesh, _):
        (router,) = mesh.router_addresses
        load = f"""ghz --insecure --call {SERVICE}/Greet -d '{{"name": "Ada"}}' -n 50 -c 5 -O json ROUTER"""
        report: Any = json.loads(await said(router, load))

        assert report["statusCodeDistribution"] == {"OK": 50}


async def test_a_router_stops_listing_them_when_they_are_taken_away() -> None:
    need_tools()
    async with slotmesh.testing.mesh({"greeter": Greeter}) as mesh:
        (router,) = mesh.router_addresses
        listing = "grpcurl -plaintext ROUTER list"

        assert SERVICE not in await said(router, listing)
        await mesh.apply(grpc_services={"greeter": [greeter_pb2]})
        assert SERVICE in await said(router, listing)
        await mesh.apply(grpc_services={"greeter": []})
        assert SERVICE not in await said(router, listing)
        gone = await said(router, f"grpcurl -plaintext ROUTER describe {SERVICE}")
        assert "no symbol" in gone or "not found" in gone.lower()


async def test_all_routers_answer_them() -> None:
    async with greeting(Greeter, routers=2) as (mesh, _):
        for address in mesh.router_addresses:
            async with opened(address) as channel:
                raw = await channel.unary_unary(f"/{SERVICE}/Greet")(b"\x0a\x03Ada")
                assert greeter_pb2.GreetResponse.FromString(raw).text == "Hello, Ada!"
