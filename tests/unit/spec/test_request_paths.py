"""Places of rules are found in the request that was sent."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import struct_pb2
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.convert.request_paths import request_path
from slotmesh.convert.specification import mesh_from_wire
from slotmesh.inference import grpc_inference_service_pb2
from slotmesh.spec.rules import mesh_violations, show
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.examples import examples
from tests.support.field_paths import wrong_path

POLICY = mesh_pb2.TrafficPolicy(weights={"v1": 0.5, "v1.x": 0.5}, shadows={"": 0.1})
MESH = mesh_pb2.Mesh(
    backends=[mesh_pb2.Backend(name="v1"), mesh_pb2.Backend(name="v1.max_ongoing"), mesh_pb2.Backend(name="v1")],
    endpoints=[
        mesh_pb2.Endpoint(
            name="e",
            traffic=POLICY,
            tenants=mesh_pb2.TenantLimits(overrides={"a.b": mesh_pb2.TenantLimit(burst=0)}),
        )
    ],
    routes=[mesh_pb2.HttpRoute(name="/a"), mesh_pb2.HttpRoute(name="/a/{b}.c")],
)
WITH_MESH = pb.ApplyMeshRequest(mesh=MESH, request_id="v9")


def config(**values: Any) -> mesh_pb2.Backend:
    backend = mesh_pb2.Backend(name="v1")
    backend.user_config.update(values)
    return backend


@pytest.mark.parametrize(
    ("request_", "place", "field"),
    [
        (WITH_MESH, "backends.v1.num_replicas", "mesh.backends[0].num_replicas"),
        (WITH_MESH, "backends.v1.autoscale.min", "mesh.backends[0].autoscale.min"),
        (WITH_MESH, "backends.v1.max_ongoing.handler", "mesh.backends[1].handler"),
        (WITH_MESH, "backends.v1", "mesh.backends[0]"),
        (WITH_MESH, "backends", "mesh.backends"),
        (WITH_MESH, "mesh", "mesh"),
        (WITH_MESH, "endpoints.e.traffic", "mesh.endpoints[0].traffic.weights"),
        (WITH_MESH, "endpoints.e.traffic.v1.x", 'mesh.endpoints[0].traffic.weights["v1.x"]'),
        (WITH_MESH, "endpoints.e.traffic.v9", "mesh.endpoints[0].traffic.weights"),
        (WITH_MESH, "endpoints.e.shadows.(empty)", 'mesh.endpoints[0].traffic.shadows[""]'),
        (WITH_MESH, "endpoints.e.tenants.overrides.a.b.burst", 'mesh.endpoints[0].tenants.overrides["a.b"].burst'),
        (WITH_MESH, "endpoints.e.grpc_services", "mesh.endpoints[0].grpc_services"),
        (WITH_MESH, "routes./a/{b}.c.methods", "mesh.routes[1].methods"),
        (WITH_MESH, "routes./a/{b}.c", "mesh.routes[1].name"),
        (WITH_MESH, "endpoints.other.traffic.v1", "mesh"),
        (pb.ApplyBackendRequest(backend=config(a=[{"b": 1}])), "backends.v1.handler", "backend.handler"),
        (
            pb.ApplyBackendRequest(backend=config(a=[{"b.c": 1}])),
            "backends.v1.user_config.a[0].b.c",
            'backend.user_config.fields["a"].list_value.values[0].struct_value.fields["b.c"]',
        ),
        (pb.ApplyBackendRequest(backend=config()), "mesh", "backend"),
        (
            pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="e", traffic=POLICY)),
            "endpoints.e.traffic.v1",
            'endpoint.traffic.weights["v1"]',
        ),
        (pb.SetTrafficRequest(endpoint="e", traffic=POLICY), "endpoints.e.traffic.v1", 'traffic.weights["v1"]'),
        (pb.SetTrafficRequest(endpoint="e", traffic=POLICY), "endpoints.e.shadows", "traffic.shadows"),
        (pb.SetTrafficRequest(endpoint="e", traffic=POLICY), "update_mask", "update_mask"),
        (pb.ShiftTrafficRequest(endpoint="e", weights={"v1": 1.0}), "endpoints.e.traffic.v1", 'weights["v1"]'),
        (pb.ShiftTrafficRequest(endpoint="e", weights={"v1": 1.0}), "weights.v1", 'weights["v1"]'),
        (pb.ShiftTrafficRequest(guards=[shift_pb.ShiftGuard()]), "guards[0].max_time", "guards[0].max_time"),
        (pb.ShiftTrafficRequest(guards=[shift_pb.ShiftGuard()]), "guards[1].max_time", "guards"),
        (pb.ShiftTrafficRequest(weights={"x" * 81: 1.0}), f"weights.{show('x' * 81)}", "weights"),
        (pb.ApplyHttpRouteRequest(route=mesh_pb2.HttpRoute(name="/a")), "routes./a", "route.name"),
        (pb.ApplyHttpRouteRequest(route=mesh_pb2.HttpRoute(name="/a")), "routes./a.method", "route.method"),
        (pb.RollbackRequest(backend="v1"), "backends.v1.handler", "backend"),
        (pb.GetBackendRequest(name="v1"), "backends.v1.name", "name"),
        (pb.SetTrafficRequest(endpoint="e"), "endpoints.e.name", "endpoint"),
        (pb.ApplyEndpointRequest(endpoint=mesh_pb2.Endpoint(name="a b")), "endpoints.a b", "endpoint.name"),
        (pb.RollbackRequest(revision=7), "endpoints.e.traffic.v1", ""),
        (
            grpc_inference_service_pb2.ModelInferRequest(
                parameters={"timeout": grpc_inference_service_pb2.InferParameter(string_param="x")}
            ),
            "parameters.timeout",
            'parameters["timeout"]',
        ),
    ],
)
def test_the_field_of_a_place(request_: Message, place: str, field: str) -> None:
    assert request_path(request_, place) == field
    assert not field or not wrong_path(request_, field)


names = st.sampled_from(["a", "a.b", "a.b.c", "", "a b", "ü" * 90, "handler", "a[0]", "traffic"])
numbers = st.sampled_from([0.5, -1.0, float("nan"), 2.0**60])
meshes = st.builds(
    mesh_pb2.Mesh,
    backends=st.lists(
        st.builds(
            mesh_pb2.Backend,
            name=names,
            handler=st.sampled_from(["", "no"]),
            max_ongoing=st.sampled_from([0, 1]),
            user_config=st.builds(
                struct_pb2.Struct,
                fields=st.dictionaries(names, st.builds(struct_pb2.Value, number_value=numbers), max_size=2),
            ),
        ),
        max_size=3,
    ),
    endpoints=st.lists(
        st.builds(
            mesh_pb2.Endpoint,
            name=names,
            traffic=st.builds(mesh_pb2.TrafficPolicy, weights=st.dictionaries(names, numbers, max_size=2)),
        ),
        max_size=2,
    ),
    routes=st.lists(st.builds(mesh_pb2.HttpRoute, name=names, endpoint=names), max_size=2),
)


@given(meshes)
@settings(max_examples=examples(150))
def test_whatever_rules_refuse_in_a_mesh_is_one_of_its_fields(wire: mesh_pb2.Mesh) -> None:
    request = pb.ApplyMeshRequest(mesh=wire)
    mesh, found = mesh_from_wire(wire)
    for violation in [*found, *mesh_violations(mesh)]:
        field = request_path(request, violation.path)
        assert not wrong_path(request, field), (violation, field)
        assert field.startswith(f"mesh.{violation.path.partition('.')[0]}["), (violation, field)


@pytest.mark.parametrize(
    "path", ["mesh.no", "mesh.backends.name", "mesh.backends[3]", "mesh.backends[0", "mesh.backends[0]x", "", "mesh."]
)
def test_a_path_that_is_none_is_noticed(path: str) -> None:
    assert wrong_path(WITH_MESH, path)
