"""All rpcs that the protos of slotmesh declare."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from google.protobuf.descriptor import MethodDescriptor

import slotmesh.inference
import slotmesh.internal.v1
import slotmesh.v1


def declared_rpcs() -> Iterator[MethodDescriptor]:
    """Each rpc of each service, found in the generated modules."""
    for package in (slotmesh.v1, slotmesh.internal.v1, slotmesh.inference):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.endswith("_pb2"):
                file = importlib.import_module(f"{package.__name__}.{module.name}").DESCRIPTOR
                for service in file.services_by_name.values():
                    yield from service.methods
