"""Cores, stores and settings see domain dataclasses; protobuf types stop at servicer, convert and shell."""

from __future__ import annotations

from tests.arch.sources import SERVICES, imports, is_within, shipped_modules

INNER = tuple(f"{service}/{layer}" for service in SERVICES for layer in ("core/", "store/", "store.py", "config.py"))
WIRE = ("google", "slotmesh.inference", "slotmesh.internal", "slotmesh.v1")


def test_no_inner_layer_imports_the_wire() -> None:
    found = [
        f"{path}:{line} {name}"
        for path, tree in shipped_modules()
        if path.startswith(INNER)
        for line, name in imports(tree)
        if any(is_within(name, package) for package in WIRE)
    ]
    assert not found, "convert.py turns wire messages into domain objects, once per frame"
