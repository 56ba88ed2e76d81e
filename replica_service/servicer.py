"""The gRPC edge of a replica: which routers may open a stream, and when.

Invariants: only a router that asks for this incarnation gets a stream, and only once the handler is constructed.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc

from replica_service.shell.engine import Engine
from replica_service.shell.links.router_stream import Request, Response, RouterStream
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.duplex import read_request
from slotmesh.spec.rules import show
from slotmesh.status import to_exception
from slotmesh.telemetry.log import get_logger
from slotmesh.v1 import replica_service_pb2, replica_service_pb2_grpc

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """Which replica this is."""

    replica_id: str
    incarnation: str
    """New at each start of a process."""
    backend: str


class ReplicaServicer(replica_service_pb2_grpc.ReplicaServiceServicer):
    """Serves routers."""

    def __init__(self, identity: ReplicaIdentity, clock: Clock) -> None:
        self._identity = identity
        self._clock = clock
        self._streams: set[RouterStream] = set()
        self._stream_ended = asyncio.Event()
        self._is_ending = False
        self.engine: Engine | None = None
        """Set once the handler has been constructed."""

    async def Execute(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: grpc.aio.ServicerContext[Request, Response]
    ) -> None:
        request = await read_request(context)
        if request is None:
            return
        router_id = self._check(request)
        if self.engine is None:
            raise to_exception(
                Failure(reason=Reason.BACKEND_UNAVAILABLE, message="the replica is starting", retry_delay_s=1.0)
            )
        stream = RouterStream(self.engine, context, self._clock, request.open.features, request.open.stream_id)
        self._streams.add(stream)
        if self._is_ending:
            stream.dismiss()
        _log.info("router linked", router=router_id)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._stream_ended.set()
            _log.info("router link ended", router=router_id)

    async def end_streams(self, grace_s: float, *, answers: bool = True) -> None:
        """Routers are asked to half-close; after `grace_s` streams of those that did not are ended.

        If a stream ended before its router has half-closed, runs on their way would be lost with it. `answers`: whether
        all calls are answered. If not, streams end only after the half-close: routers then fail the open calls with
        executed = unknown.
        """
        self._is_ending = True
        for stream in self._streams:
            stream.dismiss()
        try:
            async with asyncio.timeout(grace_s):
                if not answers:
                    await asyncio.gather(*[stream.heard_out() for stream in self._streams])
                    for stream in self._streams:
                        stream.end()
                while self._streams:
                    self._stream_ended.clear()
                    await self._stream_ended.wait()
        except TimeoutError:
            _log.warning("routers did not end their streams in time", streams=len(self._streams), grace_s=grace_s)
            for stream in self._streams:
                stream.end()

    def _check(self, request: Request) -> str:
        """The router's id.

        Raises:
            BadRequest: the first frame is not `open`.
            ReplicaGone: the router means another replica, or an earlier incarnation.
        """
        if request.WhichOneof("frame") != "open":
            raise to_exception(
                Failure(reason=Reason.BAD_REQUEST, message="the first frame must be open", metadata={"field": "open"})
            )
        opening: replica_service_pb2.OpenExecute = request.open
        meant = (opening.replica_id, opening.incarnation)
        if meant != (self._identity.replica_id, self._identity.incarnation):
            raise to_exception(
                Failure(
                    reason=Reason.REPLICA_GONE,
                    message=(
                        f"this is replica {self._identity.replica_id}, incarnation {self._identity.incarnation};"
                        f" the router means {show(opening.replica_id)!r}, incarnation {show(opening.incarnation)!r}"
                    ),
                    metadata={"replica_id": self._identity.replica_id},
                )
            )
        return opening.router_id
