"""Server reflection, v1 and v1alpha: `grpcurl` and friends need no proto files.

Purpose: the official servicer speaks v1alpha only; both versions have the same messages, so it is mounted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

from slotmesh.runtime import health

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

ERROR_DETAILS = error_details_pb2.DESCRIPTOR
"""Loaded so that clients can read the details of errors by reflection."""


class _Descriptors:
    """The default pool, except for the health protocol, which ours has in full. The part that the servicer uses."""

    def __init__(self) -> None:
        self._default = descriptor_pool.Default()
        self._health = health.POOL.FindFileContainingSymbol(health.SERVICE)

    def FindFileByName(self, name: str) -> FileDescriptor:  # noqa: N802 - the name that a pool has
        return self._health if name == self._health.name else self._default.FindFileByName(name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - the name that a pool has
        in_health = symbol.startswith(f"{self._health.package}.")
        return (health.POOL if in_health else self._default).FindFileContainingSymbol(symbol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._default, name)


def register(services: Iterable[str], server: Any) -> None:
    """Adds both versions to a server, telling of `services` and of themselves."""
    servicer = aio.ReflectionServicer([*services, *SERVICES], pool=_Descriptors())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for service in SERVICES:
        server.add_registered_method_handlers(service, {"ServerReflectionInfo": handler})
