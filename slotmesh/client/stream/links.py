"""Connected streams to routers: the current one, those to leaving routers, and the search for the next one.

Purpose: the life of a stream, and which part handles each frame that arrives; `OutgoingFrames` handles what leaves,
`IncomingResults` the outcomes.
Invariants: when `run` returns, every call that was sent and not answered is still pending.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import grpc

from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.routers import credential_refusal
from slotmesh.client.search import FIRST_ATTEMPT_S
from slotmesh.client.stream.batch_writer import BatchWriter
from slotmesh.client.stream.incoming_results import IncomingResults, OnUnstarted
from slotmesh.client.stream.outgoing_frames import OutgoingFrames, Response, StreamCall
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.resends import Rosters
from slotmesh.errors import Failure
from slotmesh.runtime.backoff import Backoff
from slotmesh.streams.spliced_frames import CutFrame
from slotmesh.v1 import call_pb2, router_service_pb2

_TRANSPORT = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


class RouterLink:
    """The client's side of one stream, after it was opened."""

    def __init__(
        self,
        call: StreamCall,
        outbox: CallOutbox,
        pending: PendingCalls,
        batches: BatchWriter,
        rosters: Rosters,
        *,
        on_leaving: Callable[[Sequence[str]], None],
        on_unstarted: OnUnstarted,
    ) -> None:
        """`pending` calls are sent again here. `rosters`: acknowledged by this client.

        `on_leaving` is called with the routers that a leaving router names as alternates; `on_unstarted` takes calls
        that are to be sent again elsewhere.
        """
        self._call = call
        self.pending = pending
        """The calls that were sent over this link, or are to be."""
        self._on_leaving = on_leaving
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lingers = False
        self._out = OutgoingFrames(call, outbox, pending, batches, rosters, on_silence=self._on_silence)
        self._pulse = self._out.pulse
        self._results = IncomingResults(pending, self._out.values, on_unstarted)
        self.wake, self.finish, self.take_back_all = self._out.wake, self._out.finish, self._out.take_back_all
        """As those of the frames that leave."""
        self.silent = False
        """The router is lost without notice."""

    @property
    def answered(self) -> int:
        """Calls that got their outcome over this link."""
        return self._results.answered

    def end(self) -> None:
        """Ends `run` immediately: the session continues on another stream."""
        if not self._ended.done():
            self._ended.set_result(None)

    def linger(self) -> None:
        """The session moves to another stream, but for calls that cannot move: `run` returns when those have ended."""
        self._lingers = self._results.session_moved = True
        self._out.linger()
        if not self.pending.calls:
            self.end()

    async def run(self) -> None:
        """Moves frames until the stream ends. Raises the error that ended it, unless that is an orderly end."""
        reader = asyncio.create_task(self._read(), name="slotmesh-client-read")
        writer = asyncio.create_task(self._out.run(), name="slotmesh-client-write")
        try:
            await asyncio.wait((reader, writer, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and writer.done():
                error = writer.exception()
                if error is not None and not isinstance(error, _TRANSPORT):
                    raise error
                # After the half-close, answers still arrive; if the transport broke, the reader has the reason.
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

    def accept(self, response: Response, payloads: Sequence[bytes] = ()) -> None:
        """Processes a frame from the router. `payloads`: those that are not in it, of its only batch, or its chunk."""
        pulse = self._pulse
        pulse.heard = True
        match response.WhichOneof("frame"):
            case "results":
                self._results.accept(response.results, payloads)
                if not self._lingers:
                    pulse.delivered(response.results.frame_no)
            case "chunk":
                self._results.accept_chunk(response.chunk, payloads[-1] if payloads else response.chunk.data)
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
                pulse.beaten(response.heartbeat)
                return
            case "go_away":
                self._leave(response.go_away)
            case _:
                return  # unknown frames are ignored
        if not self._lingers:
            self._out.go_on()
        elif not self.pending.calls:
            self.end()

    async def _read(self) -> None:
        read, accept = self._call.read, self.accept
        while (response := await read()) is not grpc.aio.EOF:
            if type(response) is CutFrame:
                accept(*response)
            else:
                accept(cast("Response", response))

    def _accept_opened(self, opened: router_service_pb2.StreamOpened) -> None:
        self._out.set_window(opened.window)
        if opened.HasField("idle_heartbeat"):
            self._pulse.allow_rest(max(0.0, opened.idle_heartbeat.ToNanoseconds() / 1e9))
        if opened.HasField("roster"):
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


FailRest: TypeAlias = Callable[[Failure | None, bool], object]
"""Takes the failure of a stream that ended because of the caller's credential, else None; and whether it was
cancelled."""

log = logging.getLogger(__name__)


class LingeringLinks:
    """Streams to leaving routers, on which calls continue whose values arrive one by one: they cannot move.

    Usually there is none; one at a time, unless routers leave faster than the calls end.
    Invariants: no new calls are sent on such a stream, and nothing on it is acknowledged: results of calls that moved
    arrive over the new one. When the stream ends, its remaining calls have failed.
    Owner: the endpoint's `Connection`.
    """

    def __init__(self) -> None:
        self._links: dict[asyncio.Task[None], RouterLink] = {}

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """One task for each stream."""
        return set(self._links)

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of their calls."""
        return any(link.pending.has_wanted for link in self._links.values())

    def keep(self, link: RouterLink, running: asyncio.Task[None], fail_rest: FailRest) -> None:
        """`running` is the link's `run`; `fail_rest` fails the calls that are left when it has ended."""
        link.linger()
        task = asyncio.get_running_loop().create_task(_wait(running, fail_rest), name="slotmesh-client-linger")
        self._links[task] = link
        task.add_done_callback(self._ended)

    def abandon(self) -> None:
        """Cancels all calls at their routers."""
        for link in self._links.values():
            link.take_back_all()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._links[task]


async def _wait(running: asyncio.Task[None], fail_rest: FailRest) -> None:
    is_closed, refusal = False, None
    try:
        await running
    except asyncio.CancelledError:
        is_closed = True
        raise
    except grpc.RpcError as error:
        refusal = credential_refusal(error)  # or the router has left
    except Exception:
        log.exception("a stream to a router that leaves failed")
    finally:
        fail_rest(refusal, is_closed)


class NextRouter:
    """The search for another router while the current one leaves, from `seek` to `stop`.

    A leaving router answers its calls; meanwhile a connection to another one is made, on which the session continues.
    Invariants: one search at a time. The router that was found is taken once, or cancelled by `discard`.
    """

    def __init__(self, endpoint: str, others: Callable[[], Sequence[str]], call: Callable[[str], StreamCall]) -> None:
        """`others`: the routers that may be used instead. `call` makes a stream to one, which is not open yet."""
        self._endpoint = endpoint
        self._others = others
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._seeking: asyncio.Task[None] | None = None
        self._reached: tuple[str, StreamCall] | None = None
        self._found: asyncio.Future[None]

    def awaited(self) -> asyncio.Future[None]:
        """A link is used from now on. The future is done when another router than its own was found."""
        self._found = self._loop.create_future()
        return self._found

    def seek(self) -> None:
        """The router in use leaves."""
        self._seeking = self._loop.create_task(self._seek(), name=f"slotmesh-client-move-{self._endpoint}")

    async def stop(self) -> None:
        """The link has ended. What was reached stays."""
        if self._seeking is not None:
            self._seeking.cancel()
            await asyncio.gather(self._seeking, return_exceptions=True)
            self._seeking = None

    def take(self) -> tuple[str, StreamCall] | None:
        """What was reached: the router, and the stream to it, not opened yet."""
        reached, self._reached = self._reached, None
        return reached

    def discard(self) -> None:
        """Nothing is to be sent any more."""
        if (reached := self.take()) is not None:
            reached[1].cancel()

    async def _seek(self) -> None:
        backoff = Backoff()
        while True:
            for address in self._others():
                try:
                    call = self._call(address)
                except grpc.RpcError:  # there is no token to be had
                    continue
                try:
                    async with asyncio.timeout(FIRST_ATTEMPT_S):
                        await call.wait_for_connection()
                except (grpc.RpcError, TimeoutError):
                    call.cancel()
                except BaseException:
                    call.cancel()
                    raise
                else:
                    self._reached = address, call
                    if not self._found.done():
                        self._found.set_result(None)
                    return
            await asyncio.sleep(backoff.next_delay_s())
