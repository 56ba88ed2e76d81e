"""The gRPC edge of a replica for clients that hold slots and speak to it themselves.

Invariants: a stream begins once the handler is there, and with `open`; one that means another replica is refused.
Owner: the app.
"""

from __future__ import annotations

from typing import Any

import grpc

from replica_service.shell.engine import Engine
from replica_service.shell.links.attach_stream import AttachStream, Request
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.duplex import read_request
from slotmesh.spec.rules import show
from slotmesh.status import to_exception
from slotmesh.v1 import direct_service_pb2_grpc


class DirectServicer(direct_service_pb2_grpc.DirectServiceServicer):
    """Serves clients."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._engine: Engine | None = None
        self._streams: set[AttachStream] = set()

    def serve(self, engine: Engine) -> None:
        """The handler has been constructed."""
        self._engine = engine
        engine.at_drain.append(self._go_away)

    async def Attach(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        request = await read_request(context)
        if request is None:
            return
        engine = self._check(request)
        stream = AttachStream(engine, context, self._clock)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def end_streams(self) -> None:
        """All is answered, or nobody waits for it any longer."""
        for stream in self._streams:
            stream.end()

    def _go_away(self) -> None:
        for stream in self._streams:
            stream.go_away()

    def _check(self, request: Request) -> Engine:
        """The engine that the client means.

        Raises:
            BadRequest: the first frame is not `open`.
            BackendUnavailable: the handler is not there yet.
            ReplicaGone: the client means another replica.
        """
        if request.WhichOneof("frame") != "open":
            raise to_exception(
                Failure(reason=Reason.BAD_REQUEST, message="the first frame must be open", metadata={"field": "open"})
            )
        if self._engine is None:
            raise to_exception(
                Failure(reason=Reason.BACKEND_UNAVAILABLE, message="the replica is starting", retry_delay_s=1.0)
            )
        here, meant = self._engine.slots.issuer.replica_id, request.open.replica_id
        if meant not in ("", here):
            message = f"open.replica_id: this is replica {here}; the client means {show(meant)!r}"
            raise to_exception(Failure(reason=Reason.REPLICA_GONE, message=message, metadata={"replica_id": meant}))
        return self._engine
