"""What the wire contract says to users of other languages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

MODULES = sorted(
    f"slotmesh.{package}.{path.stem}"
    for package in ("v1", "internal.v1", "internal.etcd.v1")
    for path in Path("slotmesh", *package.split(".")).glob("*_pb2.py")
)


def test_every_proto_is_looked_at() -> None:
    protos = {path.relative_to("protos").with_suffix("") for path in Path("protos/slotmesh").rglob("*.proto")}
    assert {Path(*module.removesuffix("_pb2").split(".")) for module in MODULES} == protos


@pytest.mark.parametrize("module", MODULES)
def test_all_protos_are_of_one_package_in_each_language(module: str) -> None:
    """protoc-gen-go refuses a proto without one, and Go's tools a package whose path has no domain."""
    file = import_module(module).DESCRIPTOR
    options, folder = file.GetOptions(), file.name.rpartition("/")[0]
    go_names = {
        "slotmesh/v1": "slotmeshv1",
        "slotmesh/internal/v1": "internalv1",
        "slotmesh/internal/etcd/v1": "etcdv1",
    }
    go_name = go_names[folder]
    assert file.package == folder.replace("/", ".")
    assert options.go_package == f"github.com/slotmesh/slotmesh-go/{folder};{go_name}"
    assert (options.java_package, options.java_multiple_files) == (file.package, True)
    assert options.csharp_namespace == ".".join(part.title() for part in folder.split("/"))


@pytest.mark.parametrize("module", [module for module in MODULES if "internal" not in module])
def test_the_public_contract_uses_nothing_of_the_internal_one(module: str) -> None:
    imported = [file.name for file in import_module(module).DESCRIPTOR.dependencies]
    assert not [name for name in imported if "/internal/" in name]


def test_the_open_inference_protocol_has_the_package_of_its_specification() -> None:
    """And a Python package of its own: `inference` at the top level would be anybody's."""
    file = import_module("slotmesh.inference.grpc_inference_service_pb2").DESCRIPTOR
    assert file.package == "inference"
    assert [Path("protos", *path.parts[-2:]) for path in Path("protos/inference").glob("*.proto")] == [
        Path("protos/inference/grpc_inference_service.proto")
    ]
    assert file.name == "slotmesh/inference/grpc_inference_service.proto"
