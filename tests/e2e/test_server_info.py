"""Every server of a mesh answers its identity, which agrees with the controller's."""

from __future__ import annotations

import time

import pytest

from slotmesh.cli.operator import Operator
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import info_service_pb2 as pb
from slotmesh.v1.info_service_pb2_grpc import InfoServiceStub
from slotmesh.version import VERSION
from tests.support.mesh import started_mesh

pytestmark = pytest.mark.asyncio


async def server_info(address: str) -> pb.GetServerInfoResponse:
    async with open_channel(address) as channel:
        info: pb.GetServerInfoResponse = await InfoServiceStub(channel).GetServerInfo(
            pb.GetServerInfoRequest(), timeout=10.0
        )
        return info


async def test_every_server_says_who_it_is() -> None:
    async with started_mesh("tests.e2e.handlers:Gallery") as mesh, Operator.at(mesh.controller_address) as operator:
        members = await operator.members()
        (router,), (replica,) = members.routers, members.replicas
        infos = [await server_info(it) for it in (mesh.controller_address, router.address, replica.address)]
    assert [(it.kind, it.server_id, it.address) for it in infos] == [
        (pb.SERVER_KIND_CONTROLLER, "", mesh.controller_address),
        (pb.SERVER_KIND_ROUTER, router.router_id, router.address),
        (pb.SERVER_KIND_REPLICA, replica.replica_id, replica.address),
    ]
    assert {it.version for it in infos} == {VERSION}
    assert all(abs(time.time() - it.start_time.ToSeconds()) < 600 for it in infos)
    assert infos[0].incarnation == members.generation
