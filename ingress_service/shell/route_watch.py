"""Follows the routes that the controller streams.

Invariants: the last routes stay in force while the controller is away; an older revision of the same generation is
never put in place of a newer one. Routes of a controller whose state file is an older copy are taken only where there
are none.
Owner: the app, which runs `run` as a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import grpc

from slotmesh.convert.specification import route_from_wire
from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff, WarningBackoff
from slotmesh.runtime.channels import Dialer
from slotmesh.spec.routes import Route, path_problems
from slotmesh.status import from_rpc_error
from slotmesh.transport.current_channel import ControllerChannels
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.v1 import http_route_service_pb2 as pb
from slotmesh.v1.http_route_service_pb2_grpc import HttpRouteServiceStub

_HELD: Final = "the controller's state file is an older copy: it decides nothing until an operator has"

_log = get_logger(__name__)


class RouteWatch:
    """Watches the controller that leads, again and again."""

    def __init__(
        self, controllers: ServerAddresses, dialer: Dialer, follow: Callable[[tuple[Route, ...]], object]
    ) -> None:
        """`follow` is given all routes whenever some have changed."""
        self._channels = ControllerChannels(controllers, dialer)
        self._search = self._channels.search
        self._follow = follow
        self._backoff = Backoff()
        self._warnings = WarningBackoff()
        self.revision = -1
        """Of the routes in force; -1 before the first."""
        self.generation = ""
        self.has_routes = asyncio.Event()
        """The first routes are there."""
        self.is_held = False
        """The controller's state file is an older copy: the routes in force stay."""
        self.problem = "the controller has not answered yet"
        """Why there are no routes, or no newer ones; empty while the controller answers."""

    async def run(self) -> None:
        """Watches until cancelled."""
        async with self._channels as channels:
            while True:
                call, is_referred = None, False
                try:
                    call = HttpRouteServiceStub(await channels.current()).WatchHttpRoutes(pb.WatchHttpRoutesRequest())
                    async for state in call:
                        self._take(state)
                    controller, why = channels.address, "the controller ended the stream"
                    channels.failed()
                except grpc.aio.AioRpcError as error:
                    controller = channels.address
                    is_referred = channels.refused(from_rpc_error(error))
                    why = f"{error.code().name}: {channels.explained(error.details() or '')}"
                finally:
                    if call is not None:
                        call.cancel()
                self.problem = f"{controller}: {why}"
                if (left_out := self._warnings.take(monotonic())) is not None:
                    log = _log.info if is_referred else _log.warning
                    more = {"reason": why} | ({"times_before": left_out} if left_out else {})
                    log(
                        "routes are not followed; the last ones stay in force"
                        if self.has_routes.is_set()
                        else "routes are not followed; there are none yet",
                        controller=controller,
                        **more,
                    )
                if not is_referred:
                    await asyncio.sleep(self._backoff.next_delay_s())

    def _take(self, state: pb.WatchHttpRoutesResponse) -> None:
        self._backoff.reset()
        self._warnings.reset()
        is_older = state.generation == self.generation and state.revision < self.revision
        was_held, self.is_held = self.is_held, state.on_hold or is_older
        self.problem = _HELD if self.is_held else ""
        if self.is_held and not was_held:
            _log.warning(
                "routes are kept: the controller's state file is an older copy",
                controller=self._search.current,
                its_revision=state.revision,
                revision=self.revision,
            )
        if self.is_held and self.revision >= 0:
            return
        self.generation, self.revision = state.generation, state.revision
        routes = tuple(route_from_wire(it) for it in state.routes)
        self._follow(tuple(it for it in routes if not any(path_problems(it.path))))
        self.has_routes.set()
        _log.info("routes", revision=state.revision, count=len(routes))
