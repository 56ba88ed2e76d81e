"""`grpc.health.v1`: whether the server and its services accept work. Check, Watch and List.

Purpose: probed by load balancers, compose and Kubernetes. The official servicer starts as SERVING, never ends a Watch,
and has no List.
Invariants: NOT_SERVING until set otherwise; each watcher gets the newest state, not every state; after `close` nothing
is SERVING again and each watcher has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc import code_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from slotmesh.spec.rules import show

Context = grpc.aio.ServicerContext[Any, Any]
Status = int
"""One of `HealthCheckResponse.ServingStatus`."""

SERVICE = "grpc.health.v1.Health"
OVERALL = ""
"""The service name of the whole server."""


class ServerHealth(health_pb2_grpc.HealthServicer):
    """The serving status of one server's services, and its rpcs."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {OVERALL: health_pb2.HealthCheckResponse.NOT_SERVING}
        self._changed = asyncio.Event()
        self._closed = False

    def add(self, services: Iterable[str]) -> None:
        """Adds services, which share the status of the server."""
        for service in services:
            self._statuses[service] = self._statuses[OVERALL]
        self._announce()

    def set_serving(self, serving: bool) -> None:
        """Sets the status of the server and all its services. After `close` it stays NOT_SERVING."""
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if serving and not self._closed else response.NOT_SERVING
        self._statuses = dict.fromkeys(self._statuses, status)
        self._announce()

    @property
    def serving(self) -> bool:
        """Whether the server accepts work."""
        return self._statuses[OVERALL] == health_pb2.HealthCheckResponse.SERVING

    def close(self) -> None:
        """Sets NOT_SERVING for good; the watchers' streams end after that status."""
        self._closed = True
        self.set_serving(False)

    async def Check(  # noqa: N802 - an rpc
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            # The health protocol specifies this status. It is no failure of a call, and has no Reason.
            unknown = status_pb2.Status(code=code_pb2.NOT_FOUND, message=f"no service {show(request.service)!r} here")
            await context.abort_with_status(rpc_status.to_status(unknown))
            raise AssertionError("abort_with_status returned")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802 - an rpc
        sent: Status | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            elif self._closed:
                return
            else:
                await changed.wait()

    async def List(self, _request: Any, _context: Context) -> Any:  # noqa: N802 - an rpc
        answer = ListResponse()
        for service, status in self._statuses.items():
            answer.statuses[service].status = status
        return answer

    def register(self, server: Any) -> None:
        """Adds the service to a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)
        server.add_registered_method_handlers(
            SERVICE,
            {
                "List": grpc.unary_unary_rpc_method_handler(
                    self.List, ListRequest.FromString, ListResponse.SerializeToString
                )
            },
        )

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _complete(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """Adds `List` to the health protocol, which published packages up to 1.80 lack."""
    (service,) = file.service
    if any(method.name == "List" for method in service.method):
        return file
    field = descriptor_pb2.FieldDescriptorProto
    request, response = (file.message_type.add(name=f"HealthList{suffix}") for suffix in ("Request", "Response"))
    del request
    entry = response.nested_type.add(name="StatusesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_MESSAGE,
        type_name=".grpc.health.v1.HealthCheckResponse",
    )
    response.field.add(
        name="statuses",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".grpc.health.v1.HealthListResponse.StatusesEntry",
    )
    service.method.add(
        name="List",
        input_type=".grpc.health.v1.HealthListRequest",
        output_type=".grpc.health.v1.HealthListResponse",
    )
    return file


_file = descriptor_pb2.FileDescriptorProto()
health_pb2.DESCRIPTOR.CopyToProto(_file)
POOL = descriptor_pool.DescriptorPool()
"""The complete health protocol, for reflection. The default pool keeps the published one."""
POOL.Add(_complete(_file))
ListRequest: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("grpc.health.v1.HealthListRequest"))
ListResponse: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("grpc.health.v1.HealthListResponse"))
