"""Cores, stores and settings see domain dataclasses; protobuf types stop at servicer, convert and shell."""

from __future__ import annotations

from tests.arch.sources import SERVICES, imports, is_within, shipped_modules

INNER = tuple(f"{service}/{layer}" for service in SERVICES for layer in ("core/", "store/", "store.py", "config.py"))
EDGES = ("controller_service/store/etcd/client.py",)
"""A store's own edge: it speaks to a database by messages that are no part of the mesh's contract."""
WIRE = ("google", "slotmesh.inference", "slotmesh.internal", "slotmesh.v1")


def test_no_inner_layer_imports_the_wire() -> None:
    found = [
        f"{path}:{line} {name}"
        for path, tree in shipped_modules()
        if path.startswith(INNER) and path not in EDGES
        for line, name in imports(tree)
        if any(is_within(name, package) for package in WIRE)
    ]
    assert not found, "convert.py turns wire messages into domain objects, once per frame"
