"""The scripted router: real gRPC, which sends only what a case contains, and echoes heartbeats.

Purpose: takes streams, notes what the client sends, writes the frames of the case.
Invariants: frames of a stream leave in the order in which they were queued. A router that was killed leaves no stream.
Owner: the player of one case.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from slotmesh.conformance.frames import ids_answered, ids_of_values
from slotmesh.conformance.record import ClientRecord
from slotmesh.conformance.relay import Relay
from slotmesh.conformance.rules import StreamRules
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import server_options
from slotmesh.status import DOMAIN, abort, to_status
from slotmesh.transport.duplex import read_request
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
BREAK_S: Final = 0.1
"""gRPC shows a cancelled rpc and a broken connection first as the end of the requests, and this much later at most."""
_STREAMS_ONLY = Failure(reason=Reason.NOT_IMPLEMENTED, message="the cases are about StreamCalls")

Context = grpc.aio.ServicerContext[Request, Response]


class ScriptedStream:
    """One stream of the client under test."""

    def __init__(self, record: ClientRecord, where: str, refusal: Failure | None) -> None:
        """`where` names router and stream. `refusal`: ends it as soon as it is opened."""
        self._refusal = refusal
        self.rules = StreamRules(record)
        self._record = record
        self._where = where
        self.opening: router_service_pb2.OpenStream | None = None
        self.half_closed = False
        self.broken = False
        """The client has cancelled the rpc, or its connection broke."""
        self.heartbeats = 0
        self.silent = False
        """While true, nothing is written, not even the echo of a heartbeat."""
        self.accepted = False
        """`opened` was written."""
        self._end: status_pb2.Status | None = None
        self._queued: asyncio.Queue[Response | None] = asyncio.Queue()

    def write(self, frame: Response) -> None:
        """Queues a frame."""
        rules = self.rules
        if frame.WhichOneof("frame") == "results":
            rules.frames_sent += 1
            frame.results.frame_no = frame.results.frame_no or rules.frames_sent
        rules.values(ids_of_values(frame))
        rules.answered(ids_answered(frame))
        if frame.WhichOneof("frame") == "go_away":
            rules.go_away()
        self.accepted |= frame.HasField("opened")
        if frame.opened.HasField("roster"):
            rules.rosters.named(frame.opened.roster)
        if frame.WhichOneof("frame") == "roster":
            rules.rosters.named(frame.roster)
        for window in (frame.opened.window, frame.window):
            if window.calls:
                rules.window(window.calls, window.bytes)
        self._record.show(f"client < {self._where}", frame)
        self._queued.put_nowait(frame)

    def echo(self) -> None:
        """Answers all calls with their names, once the stream was accepted."""
        if self.accepted and (calls := self.rules.unanswered):
            batch = call_pb2.ResultBatch(
                call_ids=[call.call_id for call in calls], payloads=[call.name.encode() for call in calls]
            )
            self.write(Response(results=call_pb2.ResultFrame(batches=[batch])))

    def end(self, failure: Failure | None, domain: str = DOMAIN) -> None:
        """Ends the stream after all queued frames: with OK, or with a failure as routers do.

        `domain`: of its ErrorInfo; empty: it has none, as if the transport had ended the rpc.
        """
        if failure is not None:
            self._end = to_status(failure)
            if domain != DOMAIN:
                self._end.ClearField("details")
                foreign = error_details_pb2.ErrorInfo(reason=failure.reason.value, domain=domain)
                if domain:
                    self._end.details.add().Pack(foreign)
        self._record.show(f"client < {self._where}", f"the stream ends, {self._end_words()}")
        self._queued.put_nowait(None)

    def _end_words(self) -> str:
        """The status, and whose reason it has."""
        if self._end is None:
            return "OK"
        code = code_pb2.Code.Name(self._end.code)
        if not self._end.details:
            return f"{code} without ErrorInfo"
        info = error_details_pb2.ErrorInfo()
        self._end.details[0].Unpack(info)
        return f"{code} with ErrorInfo: reason {info.reason}, domain {info.domain}"

    async def serve(self, context: Context) -> None:
        """Reads and writes until `end`."""
        reader = asyncio.create_task(self._read(context))
        try:
            while (frame := await self._queued.get()) is not None:
                await context.write(frame)
        except asyncio.CancelledError:
            self.broken = True
            self._record.show(f"client > {self._where}", "the rpc is cancelled, or the connection broken")
            raise
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if self._end is not None:
            await context.abort_with_status(rpc_status.to_status(self._end))

    async def _read(self, context: Context) -> None:
        while (request := await read_request(context)) is not None:
            self._record.show(f"client > {self._where}", request)
            self.rules.request(request)
            kind = request.WhichOneof("frame")
            if kind == "open" and self.opening is None:
                self.opening = request.open
                if self._refusal is not None:
                    self.end(self._refusal)
            elif kind == "heartbeat":
                self.heartbeats += 1
                if not self.silent:
                    stamp = request.heartbeat.stamp
                    self._queued.put_nowait(Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=stamp)))
        await asyncio.sleep(BREAK_S)  # cancelled by `serve` if the stream is broken
        self._record.show(f"client > {self._where}", "half-close")
        self.half_closed = True


class ScriptedRouter(router_service_pb2_grpc.RouterServiceServicer):
    """Listens at one address, which it keeps when it is killed and started again."""

    def __init__(self, name: str, record: ClientRecord) -> None:
        self.streams: list[ScriptedStream] = []
        """All that were opened here, in order."""
        self.refusal: Failure | None = None
        """Ends each further stream as soon as it is opened."""
        self._name = name
        self._record = record
        self._relay = Relay()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listens."""
        server = grpc.aio.server(options=server_options())
        router_service_pb2_grpc.add_RouterServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._server = server
        await self._relay.start(port)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self._relay.port}"

    def vanish(self) -> None:
        """Its host is not reachable from now on: connections stay open, and nothing arrives."""
        self._record.show(f"router {self._name}", "vanishes")
        self._relay.vanish()

    async def kill(self) -> None:
        """Ends immediately: its streams break, and connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            self._record.show(f"router {self._name}", "ends")
            await self._relay.stop()
            await server.stop(None)

    async def StreamCalls(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        stream = ScriptedStream(self._record, f"{self._name}{len(self.streams) + 1}", self.refusal)
        self.streams.append(stream)
        await stream.serve(context)

    async def Call(self, request: Any, context: Any) -> Any:
        await abort(context, _STREAMS_ONLY)

    DescribeEndpoints = Call
    CallStreaming = Call  # type: ignore[assignment]  # it only fails
    Broadcast = Call  # type: ignore[assignment]  # likewise
