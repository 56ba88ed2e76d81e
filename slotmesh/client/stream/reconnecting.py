"""The session of an endpoint: one stream after the other, each to one of the known routers.

Purpose: opens a stream when there are calls to send, and continues at another router with the unanswered calls when a
router is lost, leaves or falls silent.
Invariants: a call that was sent gets its outcome or is sent again; if the caller's identity has changed, it fails
instead, executed=unknown. Calls fail for lack of a router only when `Search` has found none in time.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import grpc

from slotmesh.client.calls.call_spec import MAX_BYTES_UNTIL_KNOWN
from slotmesh.client.calls.outbox import CallOutbox
from slotmesh.client.calls.sent_parts import fail, give_up
from slotmesh.client.routers import MAY_HAVE_RUN, Routers, refusal_of
from slotmesh.client.search import Search, attempt, diagnose
from slotmesh.client.stream.abandoned_calls import Overdue
from slotmesh.client.stream.batch_writer import BatchWriter
from slotmesh.client.stream.incoming_results import OnUnstarted
from slotmesh.client.stream.links import LingeringLinks, NextRouter, RouterLink
from slotmesh.client.stream.outgoing_frames import Request, Response, StreamCall
from slotmesh.client.stream.pending_calls import PendingCalls, Settled
from slotmesh.client.stream.resends import EndpointSession, refuse_oversize
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.security.handshakes import ConnectionProblem
from slotmesh.status import from_rpc_error
from slotmesh.streams import features
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import router_service_pb2

_WORTH_ANOTHER_TRY: Final = frozenset(
    {
        *(Reason.ROUTER_LOST, Reason.CANCELLED, Reason.INTERNAL, Reason.DEADLINE_RUNNING),
        *(Reason.DRAINING, Reason.SESSION_FENCED),
    }
)
"""Failures of the transport if a router is not there (yet), or of a router about a stream that came too late."""

_WORTH_ANOTHER_STREAM: Final = _WORTH_ANOTHER_TRY | {Reason.UNAUTHENTICATED}
"""Failures of an open stream: an expired credential may have a successor by now."""

_SOUND_S: Final = 1.0
"""A stream that lived at least this long resets the back-off, even if it has answered nothing."""

GAVE_UP: Final = Failure(
    reason=Reason.CANCELLED, message="taken back by its caller while its session moved", executed=Executed.UNKNOWN
)

_NO_ANSWER: Final = Failure(reason=Reason.ROUTER_LOST, message="no answer")

log = logging.getLogger(__name__)


class Connection:
    """Serves the outbox until nothing is left to send and nothing is unanswered."""

    def __init__(
        self,
        endpoint: str,
        routers: Routers,
        patience_s: float,
        outbox: CallOutbox,
        on_unstarted: OnUnstarted,
        *,
        names_executors: bool = False,
    ) -> None:
        """`on_unstarted`: takes calls that a leaving router has not started, and that no other router has.

        `names_executors`: ask routers to report the backend that executed each call.
        """
        self._features = (*features.OF_CLIENTS, *([features.EXECUTORS] if names_executors else []))
        self._on_unstarted = on_unstarted
        self._endpoint = endpoint
        self._routers = routers
        self._patience_s = patience_s
        self._outbox = outbox
        self._pending = PendingCalls()
        self._overdue = Overdue(outbox, lambda: self._pending, lambda: self.address, self._problem)
        self._session = EndpointSession()
        self._search: Search | None = None
        """The last one."""
        self._link: RouterLink | None = None
        self._next_router = NextRouter(endpoint, lambda: routers.others(self.address), self._call)
        self._lingering = LingeringLinks()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self.address = ""
        """The router that was used last; empty before the first connection."""
        self.max_payload_bytes = MAX_BYTES_UNTIL_KNOWN
        """Largest payload of one call."""

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for a call, sent or not."""
        return self._outbox.has_wanted or self._pending.has_wanted or self._lingering.has_wanted

    @property
    def is_open(self) -> bool:
        """Whether there is an open stream to a router, which has to be ended."""
        return self._link is not None or bool(self.lingering)

    @property
    def lingering(self) -> set[asyncio.Task[None]]:
        """A task for each leaving router that has calls which cannot move."""
        return self._lingering.tasks

    def wake(self) -> None:
        """Calls were added to the outbox."""
        if self._link is not None:
            self._link.wake()

    def finish(self) -> None:
        """No more calls follow: ends the stream when all are answered. May be repeated after calls were cancelled."""
        self._closing = True
        if not self._outbox.has_wanted:
            self._fail_unsent(GAVE_UP)
        if self._link is not None:
            self._link.finish()

    def abandon(self, failure: Failure) -> None:
        """Fails all calls now, and cancels them at the router."""
        self._lingering.abandon()
        link = self._link
        if link is None:
            self.fail_all(failure)
            return
        link.take_back_all()
        for (
            part
        ) in self._pending.parts():  # they stay unanswered until their outcomes have arrived and are acknowledged
            give_up(part, replace(failure, executed=Executed.UNKNOWN))
        self._fail_unsent(failure)
        link.finish()

    def fail_all(self, failure: Failure) -> None:
        """Fails all calls: those that were sent may have been executed."""
        self._fail_sent(replace(failure, executed=Executed.UNKNOWN))
        self._fail_unsent(failure)

    def _fail_unsent(self, failure: Failure) -> None:
        for index, part in enumerate(list(self._outbox.drain())):
            fail(part, 0, part.count, replace(failure, executed=Executed.NO), is_repeated=index > 0)
            part.settled(0, part.count)

    async def serve(self) -> Failure:
        """Runs until no call is left, or no router is found. Returns the failure for the calls still pending."""
        if not await self._routers.found(self._patience_s):
            return self._routers.unreachable(self._patience_s)
        search = self._search = Search(self._routers, self._patience_s, self.address)
        refusal = _NO_ANSWER
        self._overdue.start()
        try:
            while self._pending.calls or self._outbox:
                if pause_s := search.take_pause_s(self.address):
                    search.spent(pause_s)
                    await asyncio.sleep(pause_s)
                link = await self._attempt(search)
                if isinstance(link, Failure):
                    refusal = link
                    if refusal.reason is Reason.UNAUTHENTICATED and self._pending.calls:
                        self._begin_session(refusal)
                        continue
                    if refusal.reason not in _WORTH_ANOTHER_TRY:
                        return refusal
                    if search.is_over:
                        break
                    continue
                opened = self._loop.time()
                await self._serve(link)
                was_sound = link.answered > 0 or self._loop.time() - opened >= _SOUND_S
                search.lost(self.address, was_sound=was_sound)
        finally:
            self._overdue.stop()
            self._next_router.discard()
        # unused if no call is left
        return self._routers.unreachable(search.tried_s, refusal.message, problem=search.problem)

    # -- opening ---------------------------------------------------------------------------------------------------

    async def _attempt(self, search: Search) -> RouterLink | Failure:
        reached = self._next_router.take()
        address = search.take() if reached is None else reached[0]
        try:
            async with attempt(search, self._routers, address):
                call = self._call(address, patiently=search.is_alone) if reached is None else reached[1]
                return await self._open(call, address)
        except TimeoutError:
            await diagnose(search, self._routers, address)
            if not search.is_hopeless:
                self._routers.renew(address)
            return _NO_ANSWER
        except grpc.RpcError as error:
            await diagnose(search, self._routers, address)
            return refusal_of(error, address, self._routers.dialer)

    def _problem(self) -> ConnectionProblem | None:
        """Why no router is reached; None if one is, or if that is not known."""
        return self._search.problem if self._search and self._link is None else None

    def _call(self, address: str, *, patiently: bool = False) -> StreamCall:
        """A stream that is not open yet. `patiently`: the transport waits for the router."""
        call: StreamCall = self._routers.stub(address).StreamCalls(wait_for_ready=patiently)
        return call

    async def _open(self, call: StreamCall, address: str) -> RouterLink | Failure:
        """Returns when the router has responded: no calls are sent before that."""
        try:
            await call.wait_for_connection()
            self._fail(self._pending.drain_unwanted(), GAVE_UP)  # which may stop their lanes
            wire = self._outbox.first_wire if self._outbox else self._pending.first_wire
            opening = router_service_pb2.OpenStream(endpoint=self._endpoint, features=self._features)
            if wire is not None:
                opening.default_options.CopyFrom(wire)
            self._session.identify(opening, self._pending)
            with suppress(asyncio.InvalidStateError):  # the stream has failed; reading it raises the reason
                await writer_of(call)(Request(open=opening))
            response = await call.read()
            if response is grpc.aio.EOF:
                return _NO_ANSWER
            if not isinstance(response, Response) or response.WhichOneof("frame") != "opened":
                raise ValueError(f"{address} does not answer as a router: {response}")
        except BaseException:
            call.cancel()
            raise
        opened = response.opened
        self.address = address
        limit = opened.max_payload_bytes or MAX_INLINE_BYTES
        if limit < self.max_payload_bytes:
            refuse_oversize(self._outbox, self._pending, limit)
        self.max_payload_bytes = limit
        self._routers.learn(opened.alternates)
        link = RouterLink(
            call,
            self._outbox,
            self._pending,
            BatchWriter(wire),
            self._session.rosters,
            on_leaving=self._on_leaving,
            on_unstarted=self._on_unstarted,
        )
        link.accept(response)
        return link

    def _begin_session(self, refusal: Failure) -> None:
        """No router can resume the session: calls that were sent may have been executed, others go into a new session.

        If the caller's credential was refused, the next attempt is refused as well.
        """
        self._fail_sent(replace(refusal, executed=Executed.UNKNOWN))
        self._session = EndpointSession()

    # -- serving ---------------------------------------------------------------------------------------------------

    async def _serve(self, link: RouterLink) -> None:
        """Uses a link until it ends. Its unanswered calls are sent again, or fail."""
        failure: Failure | None = self._lost("the mesh was closed", Reason.CANCELLED)
        cut_off = self._lost("the session's stream ended")
        self._link = link
        running = self._loop.create_task(link.run(), name=f"slotmesh-client-link-{self._endpoint}")
        moved = self._next_router.awaited()
        left_behind = False
        try:
            if self._closing:
                link.finish()
            await asyncio.wait((running, moved), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            else:
                left_behind = True
                self._leave_behind(link, running)
            failure = None
        except grpc.RpcError as error:
            refusal = replace(from_rpc_error(error), executed=Executed.UNKNOWN)
            if refusal.reason in _WORTH_ANOTHER_TRY:
                refusal = self._lost(f"the stream broke ({refusal.message})")
            cut_off = refusal
            failure = None if refusal.reason in _WORTH_ANOTHER_STREAM else refusal
        except Exception as error:
            log.exception("the stream of endpoint %r failed", self._endpoint)
            failure = self._lost(f"the client failed: {error!r}", Reason.INTERNAL)
        finally:
            self._link = None
            if not left_behind:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            if link.silent:
                self._routers.renew(self.address)
            await self._next_router.stop()
            if failure is not None:
                self._fail_sent(failure)
            else:
                self._fail(self._pending.drain_streaming(), cut_off)

    def _leave_behind(self, link: RouterLink, running: asyncio.Task[None]) -> None:
        """Moves to another router. Calls that cannot move continue on the old link until its router ends it."""
        staying, self._pending = self._pending, self._pending.hand_over()
        lost, closed = self._lost("the router left"), self._lost("the mesh was closed", Reason.CANCELLED)

        def fail_rest(refusal: Failure | None, is_closed: bool) -> None:
            self._fail(staying.drain(), closed if is_closed else refusal or lost)

        self._lingering.keep(link, running, fail_rest)

    def _on_leaving(self, alternates: Sequence[str]) -> None:
        """The router leaves: connects to another one while this one answers its calls."""
        self._routers.leaves(self.address, alternates)
        if self._link is not None and self._routers.others(self.address):
            self._next_router.seek()

    # -- failures --------------------------------------------------------------------------------------------------

    def _fail_sent(self, failure: Failure) -> None:
        self._fail(self._pending.drain(), failure)

    def _fail(self, drained: Iterator[Settled], failure: Failure) -> None:
        is_repeated = False
        for part, at, _, count in drained:
            fail(part, at, count, failure, is_repeated=is_repeated)
            part.settled(at, count)
            is_repeated = True

    def _lost(self, why: str, reason: Reason = Reason.ROUTER_LOST) -> Failure:
        return Failure(
            reason=reason,
            message=f"{why} before the router at {self.address} had reported the outcome of the call{MAY_HAVE_RUN}",
            executed=Executed.UNKNOWN,
        )
