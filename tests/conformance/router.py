"""The scripted router: real gRPC, and nothing that a case did not tell it to do.

Purpose: takes streams, notes what clients send, writes what it is told. By itself it only echoes heartbeats.
Invariants: frames of a stream leave in the order in which they were said. A router that was killed leaves no stream.
Owner: the player of one case.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from slotmesh.errors import Failure
from slotmesh.runtime.channels import server_options
from slotmesh.status import abort
from slotmesh.transport.duplex import read_request
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.conformance.frames import ids_answered, ids_of_values
from tests.conformance.rules import StreamRules
from tests.conformance.session import Session

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
Context = grpc.aio.ServicerContext[Request, Response]


class ScriptedStream:
    """One stream of the client under test."""

    def __init__(self, session: Session) -> None:
        self.rules = StreamRules(session)
        self.opening: router_service_pb2.OpenStream | None = None
        self.half_closed = False
        self.gone = False
        self.heartbeats = 0
        self.silent = False
        """While true, nothing is written, not even the echo of a heartbeat."""
        self._end: Failure | None = None
        self._said: asyncio.Queue[Response | None] = asyncio.Queue()

    def say(self, frame: Response) -> None:
        """Queues a frame."""
        rules = self.rules
        if frame.WhichOneof("frame") == "results":
            rules.frames_sent += 1
            frame.results.frame_no = frame.results.frame_no or rules.frames_sent
        rules.values(ids_of_values(frame))
        rules.answered(ids_answered(frame))
        if frame.WhichOneof("frame") == "go_away":
            rules.go_away()
        rules.offer(frame.opened.features)
        if frame.opened.HasField("roster"):
            rules.rosters.named(frame.opened.roster)
        if frame.WhichOneof("frame") == "roster":
            rules.rosters.named(frame.roster)
        for window in (frame.opened.window, frame.window):
            if window.calls:
                rules.window(window.calls, window.bytes)
        self._said.put_nowait(frame)

    def end(self, failure: Failure | None) -> None:
        """Ends the stream after all that was said: in order, or with a failure as routers tell it."""
        self._end = failure
        self._said.put_nowait(None)

    async def serve(self, context: Context) -> None:
        """Reads and writes until told to end."""
        reader = asyncio.create_task(self._read(context))
        try:
            while (frame := await self._said.get()) is not None:
                await context.write(frame)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self.gone = True
        if self._end is not None:
            await abort(context, self._end)

    async def _read(self, context: Context) -> None:
        while (request := await read_request(context)) is not None:
            self.rules.request(request)
            kind = request.WhichOneof("frame")
            if kind == "open" and self.opening is None:
                self.opening = request.open
            elif kind == "heartbeat":
                self.heartbeats += 1
                if not self.silent:
                    stamp = request.heartbeat.stamp
                    self._said.put_nowait(Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=stamp)))
        self.half_closed = True


class ScriptedRouter(router_service_pb2_grpc.RouterServiceServicer):
    """Listens at one address, which it keeps when it is killed and started again."""

    def __init__(self, session: Session) -> None:
        self.streams: list[ScriptedStream] = []
        """All that were ever opened here, in order."""
        self.address = ""
        self._session = session
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listens."""
        server = grpc.aio.server(options=server_options())
        router_service_pb2_grpc.add_RouterServiceServicer_to_server(self, server)
        port = server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await server.start()
        self._server = server

    async def kill(self) -> None:
        """Is gone at once: its streams break, and nobody listens."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def StreamCalls(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        stream = ScriptedStream(self._session)
        self.streams.append(stream)
        await stream.serve(context)

    async def Call(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the cases speak of streams")

    DescribeEndpoints = Call
    CallStreaming = Call  # type: ignore[assignment]  # it only fails
