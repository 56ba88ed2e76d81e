"""The connection to one replica: opened as a router, to a replica of the backend, and to nothing else.

Invariants: what begins is on a channel of the router's newest certificate. Why certificates make a connection
impossible is logged once, until there is another reason.
Owner: the replica's link.
"""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from router_service.core.replicas.replica import RoutedReplica
from slotmesh.runtime.channels import Dialer
from slotmesh.runtime.current_channel import CurrentChannel
from slotmesh.security.identity import Role
from slotmesh.telemetry.log import get_logger
from slotmesh.v1 import replica_service_pb2, replica_service_pb2_grpc

Request = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse
ExecuteCall = grpc.aio.StreamStreamCall[Request, Response]

HEALTH_TIMEOUT_S = 1.0

_log = get_logger(__name__)


class ReplicaChannel:
    """Connects at first use."""

    def __init__(self, replica: RoutedReplica, dialer: Dialer) -> None:
        self._replica = replica
        self._channel = CurrentChannel(dialer, replica.address, Role.REPLICA, replica.backend.name)
        self._problem = ""

    def execute(self) -> ExecuteCall:
        """A stream, not opened yet."""
        call: ExecuteCall = replica_service_pb2_grpc.ReplicaServiceStub(self._channel.get()).Execute()
        return call

    async def is_serving(self) -> bool:
        """Whether the replica says that it takes work."""
        health: Any = health_pb2_grpc.HealthStub(self._channel.get())
        try:
            reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.explained(error)
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def explained(self, error: grpc.aio.AioRpcError) -> str:
        """What an rpc says that has failed; where that is for certificates, in words with the way out."""
        problem = self._channel.problem(error.details() or "") or ""
        if problem and problem != self._problem:
            replica_id, _ = self._replica.key
            _log.warning("replica cannot be linked", replica=replica_id, address=self._replica.address, reason=problem)
        self._problem = problem
        return f"{error.code().name}: {problem or error.details()}"

    async def aclose(self) -> None:
        """Ends all that is on it."""
        await self._channel.aclose()
