"""Services of users' own protos in the configuration: merged, rolled back, kept by changes of the traffic, refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import grpc
import pytest

from examples.own_proto import greeter_pb2
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.errors import Reason
from slotmesh.spec.descriptor_sets import services_of_files
from slotmesh.spec.document import load_mesh, parse_mesh
from slotmesh.spec.model import NO_SERVICES, GrpcServices, InvalidSpec
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.own_protos.greeters import SERVICE
from tests.support.controllers import Controlled, running_controller
from tests.support.mesh import ROOT
from tests.support.state_changes import SERVICES

PLAIN = """
backends: {v1: {handler: "app:One"}, v2: {handler: "app:Two"}}
endpoints: {e: {traffic: {v1: 0.9, v2: 0.1}}}
"""


def with_services(services: GrpcServices) -> str:
    descriptors = base64.b64encode(services.descriptor_set).decode()
    return PLAIN.replace("0.1}}", f'0.1}}, grpc_services: {{descriptor_set_base64: "{descriptors}"}}}}')


ONE, TWO = map(with_services, SERVICES)


async def apply(mesh: Controlled, yaml: str, **more: Any) -> pb.ApplyMeshResponse:
    request = pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(yaml)), merge=True, **more)
    response: pb.ApplyMeshResponse = await mesh.operator.ApplyMesh(request)
    return response


def live(mesh: Controlled) -> GrpcServices | None:
    return mesh.controller.store.read().endpoints["e"].grpc_services


@pytest.mark.asyncio
async def test_a_file_that_is_applied_again_changes_what_it_has_changed() -> None:
    async with running_controller() as mesh:
        await apply(mesh, PLAIN)
        assert live(mesh) is None
        changed = await apply(mesh, ONE)
        assert [(it.resource, it.field, it.before) for it in changed.fields] == [
            ("endpoint/e", "grpc_services", "unset")
        ]
        assert SERVICE in changed.fields[0].after
        await mesh.operator.SetTraffic(
            pb.SetTrafficRequest(endpoint="e", traffic=mesh_pb2.TrafficPolicy(weights={"v1": 1.0}))
        )
        assert live(mesh) == SERVICES[0]
        await apply(mesh, TWO)
        assert live(mesh) == SERVICES[1]
        assert mesh.controller.store.read().endpoints["e"].traffic.weights == {"v1": 1.0}  # type: ignore[union-attr]
        await apply(mesh, PLAIN)
        assert live(mesh) is None


@pytest.mark.asyncio
async def test_what_both_have_changed_is_a_conflict() -> None:
    async with running_controller() as mesh:
        await apply(mesh, PLAIN)
        endpoint = mesh_pb2.Endpoint(name="e", grpc_services=services_to_wire(SERVICES[1]))
        await mesh.operator.ApplyEndpoint(pb.ApplyEndpointRequest(endpoint=endpoint))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await apply(mesh, ONE)
        failure = from_rpc_error(refused.value)
        assert failure.reason is Reason.APPLY_CONFLICT
        assert "endpoint/e: grpc_services" in failure.message
        await apply(mesh, ONE, force=True)
        assert live(mesh) == SERVICES[0]


@pytest.mark.asyncio
async def test_history_brings_them_back_and_a_restart_keeps_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running_controller(state=state) as mesh:
        first = await apply(mesh, ONE)
        second = await apply(mesh, TWO)
        await mesh.operator.Rollback(pb.RollbackRequest(revision=first.revision))
        assert live(mesh) == SERVICES[0]
        await mesh.operator.Rollback(pb.RollbackRequest(revision=second.revision))
        revisions = await mesh.operator.ListRevisions(pb.ListRevisionsRequest())
        assert "grpc_services" in str(revisions)
    async with running_controller(state=state) as mesh:
        assert live(mesh) == SERVICES[1]


def services_to_wire(services: GrpcServices) -> mesh_pb2.GrpcServices:
    return mesh_pb2.GrpcServices(services=services.names, descriptor_set=services.descriptor_set)


WRONG: dict[str, tuple[GrpcServices, str]] = {
    "no descriptors": (GrpcServices(names=("a.B",), descriptor_set=b"\xff"), "no google.protobuf.FileDescriptorSet"),
    "another service": (GrpcServices(names=("a.B",), descriptor_set=SERVICES[0].descriptor_set), SERVICE),
    "ours": (GrpcServices(names=("slotmesh.v1.X",), descriptor_set=b""), "the mesh's own"),
    "no name": (GrpcServices(names=("a b",), descriptor_set=b""), "no full name"),
    "no names": (GrpcServices(descriptor_set=b"x"), "without a service"),
    "out of order": (GrpcServices(names=("b.B", "a.A"), descriptor_set=b""), "order of the alphabet"),
    "too many": (GrpcServices(names=tuple(f"a.A{i:03}" for i in range(65)), descriptor_set=b""), "at most 64"),
    "too large": (GrpcServices(names=("a.A",), descriptor_set=b"x" * 262_145), "at most 262,144"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("which", WRONG)
async def test_what_is_wrong_is_refused_with_the_field(which: str) -> None:
    services, told = WRONG[which]
    async with running_controller() as mesh:
        endpoint = mesh_pb2.Endpoint(name="e", grpc_services=services_to_wire(services))
        for request in (
            mesh.operator.ApplyEndpoint(pb.ApplyEndpointRequest(endpoint=endpoint)),
            mesh.operator.ApplyMesh(pb.ApplyMeshRequest(mesh=mesh_pb2.Mesh(endpoints=[endpoint]))),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await request
            failure = from_rpc_error(refused.value)
            assert failure.reason is Reason.BAD_REQUEST
            assert "grpc_services" in failure.message
            assert told in failure.message


def test_a_document_names_proto_files_and_descriptor_sets_beside_it(tmp_path: Path) -> None:
    (tmp_path / "greeter.proto").write_bytes((ROOT / "examples/own_proto/greeter.proto").read_bytes())
    services = services_of_files([greeter_pb2.DESCRIPTOR])
    (tmp_path / "greeter.binpb").write_bytes(services.descriptor_set)
    for source in ("protos: [greeter.proto]", "descriptor_set: greeter.binpb"):
        (tmp_path / "mesh.yaml").write_text(PLAIN.replace("0.1}}", f"0.1}}, grpc_services: {{{source}}}}}"))
        found = load_mesh(tmp_path / "mesh.yaml").endpoints[0].grpc_services
        assert found is not None
        assert found.names == (SERVICE,)
    (tmp_path / "mesh.yaml").write_text(PLAIN.replace("0.1}}", "0.1}, grpc_services: {}}"))
    assert load_mesh(tmp_path / "mesh.yaml").endpoints[0].grpc_services == NO_SERVICES


def test_a_document_that_is_wrong_says_where(tmp_path: Path) -> None:
    (tmp_path / "bad.proto").write_text('syntax = "proto3"; nonsense')
    (tmp_path / "empty.proto").write_text('syntax = "proto3";')
    wrong = {
        "protos: [absent.proto]": "there is no such file",
        "protos: [bad.proto]": "protoc:",
        "protos: [empty.proto]": "declares no service",
        "descriptor_set: absent.binpb": "cannot be read",
        'descriptor_set_base64: "%"': "no base64",
        "services: [a.B]": "has to declare them",
        "protos: [a.proto], descriptor_set: b": "contradict",
        "proto: [a.proto]": "did you mean",
    }
    for source, told in wrong.items():
        text = PLAIN.replace("0.1}}", f"0.1}}, grpc_services: {{{source}}}}}")
        with pytest.raises(InvalidSpec) as invalid:
            parse_mesh(text, tmp_path)
        assert "endpoints.e.grpc_services" in str(invalid.value)
        assert told in str(invalid.value), source
