"""What the wire contract says to users of other languages."""

from __future__ import annotations

from types import ModuleType

import pytest

from slotmesh.v1 import (
    call_pb2,
    controller_service_pb2,
    membership_service_pb2,
    mesh_pb2,
    replica_service_pb2,
    router_service_pb2,
    slot_service_pb2,
)


@pytest.mark.parametrize(
    "module",
    [
        call_pb2,
        controller_service_pb2,
        membership_service_pb2,
        mesh_pb2,
        replica_service_pb2,
        router_service_pb2,
        slot_service_pb2,
    ],
    ids=lambda module: module.__name__,
)
def test_all_protos_are_of_one_go_package(module: ModuleType) -> None:
    """Without one, protoc-gen-go refuses a proto."""
    assert module.DESCRIPTOR.GetOptions().go_package == "slotmesh/v1;slotmeshv1"
