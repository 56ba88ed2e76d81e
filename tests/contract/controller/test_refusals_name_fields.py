"""Refusals name the field of the request that is at fault, in the message as in the details, and what to do."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import running_controller, violations

pytestmark = pytest.mark.asyncio

MESH = "backends: {v1: {}}\nendpoints: {e: {traffic: {v1: 1.0}}}"
WRONG = mesh_pb2.TrafficPolicy(weights={"v1": -0.5})
MASK = FieldMask(paths=["traffic"])


@pytest.mark.parametrize(
    ("rpc", "request_", "field", "text"),
    [
        ("GetEndpoint", pb.GetEndpointRequest(name="no"), "name", "no endpoint is named 'no'; there is: e"),
        (
            "GetBackend",
            pb.GetBackendRequest(name="v2"),
            "name",
            "no backend is named 'v2'; there is: v1",
        ),
        ("Rollback", pb.RollbackRequest(backend="no"), "backend", "no backend is named 'no'; there is: v1"),
        ("SetTraffic", pb.SetTrafficRequest(endpoint="no", traffic=WRONG), "endpoint", "no endpoint is named 'no'"),
        (
            "ApplyEndpoint",
            pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="no"), update_mask=MASK),
            "endpoint.name",
            "no endpoint is named 'no'",
        ),
        ("DeleteHttpRoute", pb.DeleteHttpRouteRequest(name="/a"), "name", "no route is named '/a'; there is: none yet"),
        ("DrainReplica", pb.DrainReplicaRequest(replica_id="x"), "replica_id", "ListReplicas has their ids"),
        (
            "ApplyEndpoint",
            pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="bad name!")),
            "endpoint.name",
            "endpoint.name: a name has 1 to 63",
        ),
        (
            "SetTraffic",
            pb.SetTrafficRequest(endpoint="e", traffic=WRONG),
            'traffic.weights["v1"]',
            'traffic.weights["v1"]: must be 0 … 1, is -0.5',
        ),
        (
            "ApplyMesh",
            pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(endpoints=[mesh_pb2.Endpoint(name="e", traffic=WRONG)])),
            'mesh.endpoints[0].traffic.weights["v1"]',
            "endpoints.e.traffic.v1: must be 0 … 1, is -0.5",
        ),
    ],
)
async def test_a_refusal_names_the_field(rpc: str, request_: Any, field: str, text: str) -> None:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(mesh.operator, rpc)(request_)
        assert field in violations(refused.value)
        assert text in from_rpc_error(refused.value).message
