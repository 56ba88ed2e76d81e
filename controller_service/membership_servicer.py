"""`MembershipService`: the streams of replicas and routers, as rpcs.

Owner: the composition root mounts it.
"""

from __future__ import annotations

from typing import Any

import grpc

from controller_service.shell.replica_links import ReplicaLinks
from controller_service.shell.router_links import RouterLinks
from slotmesh.v1 import membership_service_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class MembershipServicer(membership_service_pb2_grpc.MembershipServiceServicer):
    """What replicas and routers call."""

    def __init__(self, replicas: ReplicaLinks, routers: RouterLinks) -> None:
        self._replicas = replicas
        self._routers = routers

    async def AttachReplica(  # type: ignore[override]  # it reads and writes instead of iterating
        self, request_iterator: object, context: Context
    ) -> None:
        await self._replicas.serve(context)

    async def AttachRouter(  # type: ignore[override]  # as above
        self, request_iterator: object, context: Context
    ) -> None:
        await self._routers.serve(context)
