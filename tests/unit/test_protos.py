"""What the wire contract says to users of other languages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import slotmesh.inference
import slotmesh.v1

MODULES = sorted(path.stem for path in Path(slotmesh.v1.__path__[0]).glob("*_pb2.py"))


def test_every_proto_is_looked_at() -> None:
    protos = {path.stem for path in Path("protos/slotmesh/v1").glob("*.proto")}
    assert {module.removesuffix("_pb2") for module in MODULES} == protos


@pytest.mark.parametrize("module", MODULES)
def test_all_protos_are_of_one_package_in_each_language(module: str) -> None:
    """protoc-gen-go refuses a proto without one, and Go's tools a package whose path has no domain."""
    options = import_module(f"slotmesh.v1.{module}").DESCRIPTOR.GetOptions()
    assert options.go_package == "github.com/slotmesh/slotmesh-go/slotmesh/v1;slotmeshv1"
    assert (options.java_package, options.java_multiple_files) == ("slotmesh.v1", True)
    assert options.csharp_namespace == "Slotmesh.V1"


def test_the_open_inference_protocol_has_the_package_of_its_specification() -> None:
    """And a Python package of its own: `inference` at the top level would be anybody's."""
    file = import_module("slotmesh.inference.grpc_inference_service_pb2").DESCRIPTOR
    assert file.package == "inference"
    assert [Path("protos", *path.parts[-2:]) for path in Path("protos/inference").glob("*.proto")] == [
        Path("protos/inference/grpc_inference_service.proto")
    ]
    assert file.name == "slotmesh/inference/grpc_inference_service.proto"
