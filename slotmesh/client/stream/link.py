"""One connected StreamCalls stream: frames of calls down, outcomes up.

Purpose: the life of a stream, and which part takes each frame that comes; what leaves is `OutgoingFrames`' affair, what
outcomes come to `IncomingResults`'.
Invariants: when `run` returns, every call that was sent and not answered is still pending.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc

from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.stream.batch_writer import BatchWriter
from slotmesh.client.stream.incoming_results import IncomingResults, OnUnstarted
from slotmesh.client.stream.outgoing_frames import OutgoingFrames, Response, StreamCall
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.rosters import Rosters
from slotmesh.v1 import call_pb2, router_service_pb2

_TRANSPORT = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


class RouterLink:
    """The client's side of one stream, after `opened`."""

    def __init__(
        self,
        call: StreamCall,
        outbox: CallOutbox,
        pending: PendingCalls,
        batches: BatchWriter,
        rosters: Rosters,
        *,
        in_session: bool,
        on_leaving: Callable[[Sequence[str]], None],
        on_unstarted: OnUnstarted,
    ) -> None:
        """`batches` writes them as this router understands them; `rosters` are what its client has acknowledged.

        `in_session`: the router keeps sessions, so that what is pending is sent again here; without, nothing is
        pending. `on_leaving` hears that the router leaves, and of the routers that it names instead; `on_unstarted`, of
        calls that are to be made again elsewhere.
        """
        self._call = call
        self._pending = pending
        self._on_leaving = on_leaving
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lingers = False
        self._out = OutgoingFrames(
            call, outbox, pending, batches, rosters, on_silence=self._on_silence if in_session else None
        )
        self._pulse = self._out.pulse
        self._results = IncomingResults(pending, self._out.values, on_unstarted)
        self.wake = self._out.wake
        """Calls wait in the outbox."""
        self.silent = False
        """The router is gone without a word."""

    @property
    def in_session(self) -> bool:
        """Whether another stream can go on where this one ends."""
        return self._pulse is not None

    @property
    def answered(self) -> int:
        """Calls that got their outcome over this link."""
        return self._results.answered

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of the calls that this link has sent."""
        return self._pending.has_wanted

    def finish(self) -> None:
        """Half-closes once there is nothing more to say; `run` returns when all was answered."""
        self._out.finish()

    def take_back_all(self) -> None:
        """Nobody waits for what is pending any more: the client goes."""
        self._out.take_back_all()

    def end(self) -> None:
        """`run` returns at once: another stream goes on."""
        if not self._ended.done():
            self._ended.set_result(None)

    def linger(self) -> None:
        """Another stream goes on, but for calls that cannot move: `run` returns when those have ended here, too."""
        self._lingers = self._results.session_moved = True
        self._out.linger()
        if not self._pending.calls:
            self.end()

    async def run(self) -> None:
        """Moves frames until the stream ends. Raises what ended it, unless that is an orderly end or was asked for."""
        reader = asyncio.create_task(self._read(), name="slotmesh-client-read")
        writer = asyncio.create_task(self._out.run(), name="slotmesh-client-write")
        try:
            await asyncio.wait((reader, writer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and writer.done():
                error = writer.exception()
                if error is not None and not isinstance(error, _TRANSPORT):
                    raise error
                # Half-closed, then answers still come; or the transport broke, then the reader knows why.
                await asyncio.wait((reader, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                await reader
        finally:
            self.close()
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    def close(self) -> None:
        """Ends the stream, if it has not ended."""
        self._out.stop()
        self._call.cancel()

    def accept(self, response: Response) -> None:
        """A frame from the router."""
        pulse = self._pulse
        if pulse is not None:
            pulse.heard = True
        match response.WhichOneof("frame"):
            case "results":
                self._results.accept(response.results)
                if pulse is not None and not self._lingers:
                    pulse.delivered(response.results.frame_no)
            case "chunk":
                self._results.chunks.add(response.chunk)
                return
            case "rejected":
                self._results.reject(response.rejected)
            case "opened":
                self._accept_opened(response.opened)
            case "roster":
                self._learn_roster(response.roster)
            case "window":
                self._out.set_window(response.window)
            case "heartbeat":
                if pulse is not None:
                    pulse.beaten(response.heartbeat)
                return
            case "go_away":
                self._leave(response.go_away)
            case _:
                return  # clients ignore frames they do not know
        if not self._lingers:
            self._out.go_on()
        elif not self._pending.calls:
            self.end()

    async def _read(self) -> None:
        read, accept = self._call.read, self.accept
        while isinstance(response := await read(), Response):
            accept(response)

    def _accept_opened(self, opened: router_service_pb2.StreamOpened) -> None:
        self._out.set_window(opened.window)
        if self._pulse is not None and opened.HasField("idle_heartbeat"):
            self._pulse.allow_rest(max(0.0, opened.idle_heartbeat.ToNanoseconds() / 1e9))
        if self.in_session and opened.HasField("roster"):
            self._learn_roster(opened.roster)

    def _learn_roster(self, version: router_service_pb2.RosterVersion) -> None:
        if not self._lingers:
            self._out.acknowledge(version)

    def _leave(self, go_away: call_pb2.GoAway) -> None:
        if self._out.leave():
            self._on_leaving(go_away.alternates[:])

    def _on_silence(self) -> None:
        self.silent = True
        self.end()
