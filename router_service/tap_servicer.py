"""The router's gRPC edge for operators that watch live calls.

Invariants: a tap is closed when its caller leaves, whatever happens; few are open at the same time; one that is not
read holds no more than its bound. Calls that have not ended are listed for one request at a time, in pieces of a few
milliseconds.
Owner: the app registers one instance.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import grpc

from router_service.convert.live_calls import (
    KeyTags,
    open_calls_filter_of,
    open_calls_to_wire,
    seen_to_wire,
    tap_wish_of,
)
from router_service.core import failures
from router_service.core.features.taps import CallTap, TapClosed, TapOpened
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Failure, Reason
from slotmesh.security.rpc_roles import payloads_refusal
from slotmesh.status import abort
from slotmesh.v1 import tap_service_pb2, tap_service_pb2_grpc

MAX_TAPS: Final = 16
LOOK_EVERY_S: Final = 0.1
"""How often what has come is written."""
CALLS_A_RESPONSE: Final = 500
MAX_LISTS: Final = 16
"""Concurrent requests for the calls that have not ended."""
RUNS_A_STEP: Final = 1_000
"""Looked at before others get the event loop: about a millisecond."""

Context = grpc.aio.ServicerContext[Any, Any]


class TapServicer(tap_service_pb2_grpc.TapServiceServicer):
    """Live calls of this router."""

    def __init__(self, dispatcher: Dispatcher, *, allows_payloads: bool) -> None:
        self._dispatcher = dispatcher
        self._allows_payloads = allows_payloads
        self._open = 0
        self._is_leaving = asyncio.Event()
        self._lists = 0
        """Requests for a list that are under way."""
        self._scanning = asyncio.Semaphore(1)
        self._tags = KeyTags(os.urandom(16))

    def leave(self) -> None:
        """The router stops: all taps end."""
        self._is_leaving.set()

    async def TapCalls(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: tap_service_pb2.TapCallsRequest, context: Context
    ) -> None:
        """Calls that end from now on, until the caller leaves."""
        await self._dispatcher.first_table.wait_a_while()
        wish = tap_wish_of(request, allows_payloads=self._allows_payloads)
        if isinstance(wish, Failure):
            await abort(context, wish)
        if request.with_payloads and (failure := payloads_refusal()):
            await abort(context, failure)
        known = self._dispatcher.scheduler.topology.table.endpoints
        if wish.endpoint not in known:
            await abort(context, failures.no_endpoint(wish.endpoint, known))
        if self._open >= MAX_TAPS:
            message = f"{MAX_TAPS} taps are open at this router: end one of them first"
            await abort(context, Failure(reason=Reason.QUEUE_FULL, message=message))
        tap = CallTap(wish)
        self._open += 1
        self._dispatcher.post(TapOpened(tap))
        try:
            await context.send_initial_metadata(())
            await self._write(tap, context)
        finally:
            self._open -= 1
            self._dispatcher.post(TapClosed(tap))

    async def ListCalls(
        self, request: tap_service_pb2.ListCallsRequest, context: Context
    ) -> tap_service_pb2.ListCallsResponse:
        """Calls that have not ended."""
        await self._dispatcher.first_table.wait_a_while()
        wanted = open_calls_filter_of(request, allows_keys=self._allows_payloads)
        if isinstance(wanted, Failure):
            await abort(context, wanted)
        if request.with_ordering_keys and (failure := payloads_refusal()):
            await abort(context, failure)
        if self._lists >= MAX_LISTS:
            message = f"{MAX_LISTS} requests for the calls of this router are under way: try again"
            await abort(context, Failure(reason=Reason.QUEUE_FULL, message=message, retry_delay_s=1.0))
        self._lists += 1
        try:
            async with self._scanning:
                dispatcher = self._dispatcher
                scan = dispatcher.scheduler.scan_calls(wanted, dispatcher.callers)
                while True:
                    if scan.step(RUNS_A_STEP):
                        break
                    await asyncio.sleep(0)
                known = dispatcher.scheduler.topology.table.endpoints
                if wanted.endpoint and wanted.endpoint not in known and not scan.endpoints:
                    await abort(context, failures.no_endpoint(wanted.endpoint, known))
                calls = scan.calls(dispatcher.clock.now())
                return open_calls_to_wire(scan, calls, self._tags, shows_keys=request.with_ordering_keys)
        finally:
            self._lists -= 1

    async def _write(self, tap: CallTap, context: Context) -> None:
        while not self._is_leaving.is_set():
            calls, dropped = tap.take()
            for at in range(0, len(calls), CALLS_A_RESPONSE):
                part = calls[at : at + CALLS_A_RESPONSE]
                await context.write(seen_to_wire(part, dropped, self._time_of_day))
                dropped = 0
            if dropped:
                await context.write(seen_to_wire((), dropped, self._time_of_day))
            await asyncio.sleep(LOOK_EVERY_S)

    def _time_of_day(self, monotonic_s: float) -> float:
        clock = self._dispatcher.clock
        return clock.time_of_day() - (clock.now() - monotonic_s)
