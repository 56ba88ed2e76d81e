"""A command of this version, and servers of an older one or of another kind: a sentence that says which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from slotmesh.server.info_servicer import InfoServicer
from slotmesh.server.server import GrpcServer
from slotmesh.v1 import info_service_pb2 as pb
from slotmesh.v1 import info_service_pb2_grpc
from slotmesh.version import VERSION
from tests.support.shell import slotmesh

pytestmark = pytest.mark.asyncio
OF_CONTROLLERS = (
    ("status",),
    ("top", "--once"),
    ("events",),
    ("history",),
    ("calls",),
    ("get",),
    ("traffic", "digits"),
    ("rollout", "status", "digits"),
)
OF_ROUTERS = (("tap", "digits"), ("calls",))


@pytest_asyncio.fixture
async def bare(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of a server that has nothing but InfoService; its kind is the parameter."""
    kind: Any = request.param

    def amend(info: pb.GetServerInfoResponse) -> None:
        info.version = "0.0.1"
        if kind == pb.SERVER_KIND_CONTROLLER:
            info.controller.leads = True

    server = GrpcServer("bare")
    server.add(info_service_pb2_grpc.add_InfoServiceServicer_to_server, InfoServicer(kind, amend=amend))
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@pytest.mark.parametrize("bare", [pb.SERVER_KIND_CONTROLLER], indirect=True)
async def test_an_older_controller_is_named_with_both_versions(bare: str) -> None:
    for command in OF_CONTROLLERS:
        each = await slotmesh(*command, "--controller", bare)
        assert each.status == 1, command
        assert each.err == (
            f"the controller at {bare} runs slotmesh 0.0.1, which does not have what this command asks for; the command"
            f" is of slotmesh {VERSION}: upgrade the controller, or use the command of its version\n"
        ), command


@pytest.mark.parametrize("bare", [pb.SERVER_KIND_ROUTER], indirect=True)
async def test_an_older_router_is_named_with_both_versions(bare: str) -> None:
    for command in OF_ROUTERS:
        said = await slotmesh(*command, "--router", bare, "--controller", bare)
        assert said.status == 1
        assert f"the router at {bare} runs slotmesh 0.0.1" in said.err, command


@pytest.mark.parametrize("bare", [pb.SERVER_KIND_ROUTER], indirect=True)
async def test_a_server_of_another_kind_is_named_as_what_it_is(bare: str) -> None:
    said = await slotmesh("status", "--controller", bare)
    assert said.status == 1
    assert said.err.startswith(
        f"what answers at {bare} is not a controller: it is a router; name a controller with --address"
    )
