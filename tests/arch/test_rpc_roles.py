"""Each rpc of the protos says who may call it, by the option `allowed`."""

from __future__ import annotations

import re

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from slotmesh.security.identity import Role
from slotmesh.security.rpc_roles import declared_roles, rule_of
from slotmesh.v1 import roles_pb2
from tests.arch.sources import ROOT
from tests.support.declared_rpcs import declared_rpcs

SHOWS = re.compile(r"(Get|List|Describe|Watch|Wait)[A-Z]")
RPCS = tuple(declared_rpcs())


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.full_name)
def test_each_rpc_names_the_roles_that_may_call_it(rpc: MethodDescriptor) -> None:
    said = f"{rpc.full_name} needs `option (allowed) = ROLE_…;`, once or more: see protos/slotmesh/v1/roles.proto"
    assert declared_roles(rpc), said


def test_all_services_are_looked_at() -> None:
    assert len({rpc.containing_service.full_name for rpc in RPCS}) == 10


def test_the_document_has_each_rpc_with_its_roles() -> None:
    told: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in (ROOT / "docs/roles.md").read_text("utf-8").splitlines():
        cells = [[it.strip() for it in cell.split(",")] for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0][0].endswith("Service"):
            told |= {(cells[0][0], rpc): tuple(cells[2]) for rpc in cells[1]}
    assert told == {(rpc.containing_service.name, rpc.name): declared_roles(rpc) for rpc in RPCS}


def test_what_changes_the_mesh_is_for_operators() -> None:
    controller = [rpc for rpc in RPCS if rpc.containing_service.name == "ControllerService"]
    for rpc in controller:
        expected = {Role.VIEWER} if SHOWS.match(rpc.name) else {Role.OPERATOR}
        also = {Role.INVOKER} if rpc.name in {"GetHttpRoute", "ListHttpRoutes"} else set()
        assert {*declared_roles(rpc)} == expected | also, rpc.name


def test_roles_of_the_protos_are_those_of_identities() -> None:
    named = {each.name.removeprefix("ROLE_").lower() for each in roles_pb2.Role.DESCRIPTOR.values if each.number}
    assert named == set(Role)


def test_an_rpc_without_the_option_is_for_nobody() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="undeclared.proto", package="undeclared", syntax="proto3")
    file.message_type.add(name="Nothing")
    service = file.service.add(name="Undeclared")
    service.method.add(name="Ask", input_type=".undeclared.Nothing", output_type=".undeclared.Nothing")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    method = pool.FindServiceByName("undeclared.Undeclared").methods_by_name["Ask"]
    assert declared_roles(method) == ()
    assert rule_of("undeclared.Undeclared", "Ask").roles == ()
