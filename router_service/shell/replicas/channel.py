"""The channel to one replica: made with the router's identity, to a replica of the backend and nothing else.

`OutgoingRequests` holds the requests that the link carries in parts.
Owner: the replica's link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from router_service.core.replicas.replica import RoutedReplica
from slotmesh.calls.result_envelopes import MAX_REQUEST_FRAME_BYTES, MAX_REQUESTS_AHEAD
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.logs import get_logger
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.streams.spliced_frames import Paths, cut
from slotmesh.transport.current_channel import CurrentChannel
from slotmesh.v1 import call_pb2

Batch = replica_service_pb2.RequestBatch


class OutgoingRequests:
    """Requests of calls that take several, on their way to one replica, by run id.

    Purpose: requests of many calls leave as one frame, in turns; large ones are cut, so that no call waits behind them.
    Invariants: requests of one call leave in order; a frame has little more than `MAX_REQUEST_FRAME_BYTES`. The replica
    has allowed every request that waits here, call by call.
    Owner: the frames of the link.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[bytes | None]] = {}
        """None stands behind the last one. No entry where nothing waits; in the order of turns."""

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def add(self, run_id: int, requests: Sequence[bytes | None]) -> None:
        """Requests; None: there are no more."""
        waiting = self._waiting.get(run_id)
        if waiting is None:
            waiting = self._waiting[run_id] = deque()
        waiting.extend(requests)

    def discard(self, run_id: int) -> None:
        """No caller waits for this call any more."""
        self._waiting.pop(run_id, None)

    def clear(self) -> None:
        """The link is gone."""
        self._waiting.clear()

    def take(self) -> replica_service_pb2.RequestItems:
        """The next frame. Only where something waits."""
        frame = replica_service_pb2.RequestItems()
        room = MAX_REQUEST_FRAME_BYTES
        while self._waiting and room > 0 and len(frame.batches) < MAX_REQUESTS_AHEAD:
            run_id, waiting = next(iter(self._waiting.items()))
            del self._waiting[run_id]
            room -= _fill(frame.batches.add(run_id=run_id), waiting, room)
            if waiting:
                self._waiting[run_id] = waiting  # behind the others
        return frame


def _fill(batch: Batch, waiting: deque[bytes | None], room: int) -> int:
    """Moves what fits into the batch; returns how many bytes that are."""
    size = 0
    while waiting:
        request = waiting[0]
        if request is None:
            waiting.popleft()
            batch.is_last = True
            break
        left = room - size
        if len(request) > left:
            if left > 0:
                batch.payloads.append(request[:left])
                waiting[0] = request[left:]
                batch.is_cut = True
                size = room
            break
        batch.payloads.append(request)
        waiting.popleft()
        size += len(request)
    return size


Request = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse
ExecuteCall = grpc.aio.StreamStreamCall[Request, Response]
_EXECUTE: Final = f"/{replica_service_pb2.DESCRIPTOR.services_by_name['ReplicaService'].full_name}/Execute"
_PAYLOADS: Final[Paths] = (
    (
        Response.RESULTS_FIELD_NUMBER,
        call_pb2.ResultFrame.BATCHES_FIELD_NUMBER,
        call_pb2.ResultBatch.PAYLOADS_FIELD_NUMBER,
    ),
    (Response.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER),
)


def _read_response(raw: bytes) -> Any:
    """A frame of a replica's stream; a `CutFrame` if it has large payloads."""
    return cut(raw, Response.FromString, _PAYLOADS)


HEALTH_TIMEOUT_S = 1.0

_log = get_logger(__name__)


class ReplicaChannel:
    """The channel to one replica; connects at first use.

    Invariants: new rpcs use a channel with the router's newest certificate. A certificate error that prevents
    connections is logged once per cause.
    """

    def __init__(self, replica: RoutedReplica, dialer: Dialer) -> None:
        self._replica = replica
        _, incarnation = replica.key
        self._channel = CurrentChannel(
            dialer, replica.address, Role.REPLICA, replica.backend.name, incarnation=incarnation
        )
        self._problem = ""

    def execute(self) -> ExecuteCall:
        """A stream, not opened yet."""
        open_stream: Any = self._channel.get().stream_stream(_EXECUTE, Request.SerializeToString, _read_response)
        call: ExecuteCall = open_stream()
        return call

    async def is_serving(self) -> bool:
        """Whether the replica's health check reports SERVING."""
        health: Any = health_pb2_grpc.HealthStub(self._channel.get())
        try:
            reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.explained(error)
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def explained(self, error: grpc.aio.AioRpcError) -> str:
        """The details of a failed rpc; for certificate errors, an explanation with the remedy."""
        problem = self._channel.problem(error.details() or "") or ""
        if problem and problem != self._problem:
            replica_id, _ = self._replica.key
            _log.warning("replica cannot be linked", replica=replica_id, address=self._replica.address, reason=problem)
        self._problem = problem
        return f"{error.code().name}: {problem or error.details()}"

    async def aclose(self) -> None:
        """Ends all that is on it."""
        await self._channel.aclose()
