"""Which rpcs of users' own protos a handler implements: found in the generated modules that its process has imported.

Purpose: a handler's module imports the generated module of its protos, as it needs the messages. So the services are
known here by their names, with the classes of their messages: those of the user's own module.
Invariants: an rpc is a handler's where it has a public method of that name; services of the mesh itself, and of gRPC,
are no handler's.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import Message

from slotmesh.wire.rpc_frames import MESH_SERVICES


class FoundRpc(NamedTuple):
    """One rpc that a handler implements."""

    path: str
    """`package.Service/Method`, as calls name it."""
    method: str
    """The handler's."""
    request: type[Message]
    response: type[Message]
    takes_several: bool
    gives_several: bool
    is_whole: bool
    """The handler has a method for each rpc of the service: it is surely meant."""


def found_rpcs(methods: Collection[str]) -> Iterator[FoundRpc]:
    """Those of all services in this process that have the name of one of these methods."""
    files: dict[str, FileDescriptor] = {}
    for module in list(sys.modules.values()):
        declared = getattr(module, "__dict__", {}).get("DESCRIPTOR")
        if isinstance(declared, FileDescriptor) and declared.services_by_name:
            files[declared.name] = declared
    for name in sorted(files):
        for service in files[name].services_by_name.values():
            if not service.full_name.startswith(MESH_SERVICES):
                is_whole = all(method.name in methods for method in service.methods)
                for method in service.methods:
                    if method.name in methods:
                        yield _found(service.full_name, method, is_whole=is_whole)


def _found(service: str, method: MethodDescriptor, *, is_whole: bool) -> FoundRpc:
    return FoundRpc(
        path=f"{service}/{method.name}",
        method=method.name,
        request=message_factory.GetMessageClass(method.input_type),
        response=message_factory.GetMessageClass(method.output_type),
        takes_several=method.client_streaming,
        gives_several=method.server_streaming,
        is_whole=is_whole,
    )
