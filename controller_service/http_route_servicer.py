"""`HttpRouteService`: the HTTP routes, for ingresses, which follow them.

Invariants: a caller gets the routes to endpoints that it may call; a stream sends all routes in one message, and again
whenever one has changed, the newest ones to a slow reader. It also reports that the state file is an older copy, once
that is found.
Owner: the composition root mounts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from controller_service.core.desired.state import Desired
from controller_service.resource_servicer import Context, visible
from controller_service.shell.leadership import NewerMembers
from controller_service.store.protocol import Store
from slotmesh.convert.specification import route_to_wire
from slotmesh.v1 import http_route_service_pb2 as pb
from slotmesh.v1 import http_route_service_pb2_grpc


class HttpRouteServicer(http_route_service_pb2_grpc.HttpRouteServiceServicer):
    """What ingresses call."""

    def __init__(self, store: Store, newer: NewerMembers) -> None:
        self._store = store
        self._newer = newer

    async def WatchHttpRoutes(  # type: ignore[override]  # it writes instead of yielding
        self, request: pb.WatchHttpRoutesRequest, context: Context
    ) -> None:
        await self._newer.settled.wait()  # routes of an older copy are sent to no ingress that has newer ones
        desired = self._store.read()
        sent, was_on_hold = desired.routes, bool(self._newer)
        await context.write(self._state(desired))
        async with aclosing(self._store.watch(after_revision=desired.revision)) as revisions:
            async for _ in _woken(revisions, self._newer.begun):
                desired, is_on_hold = self._store.read(), bool(self._newer)
                if is_on_hold != was_on_hold or (desired.routes is not sent and desired.routes != sent):
                    sent, was_on_hold = desired.routes, is_on_hold
                    await context.write(self._state(desired))

    def _state(self, desired: Desired) -> pb.WatchHttpRoutesResponse:
        return pb.WatchHttpRoutesResponse(
            routes=map(route_to_wire, visible(desired.routes).values()),
            revision=desired.configured_at,
            generation=self._store.generation,
            on_hold=bool(self._newer),
        )


async def _woken(revisions: AsyncGenerator[Desired, None], event: asyncio.Event) -> AsyncGenerator[None, None]:
    """Yields at each revision, and once when the event has happened; ends with the revisions."""

    async def changed() -> bool:
        return await anext(revisions, None) is not None

    happened = asyncio.ensure_future(event.wait())
    change = asyncio.ensure_future(changed())
    waiting: set[asyncio.Future[Any]] = {happened, change}
    try:
        while True:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if change in done:
                if not change.result():
                    return
                change = asyncio.ensure_future(changed())
                waiting.add(change)
            yield
    finally:
        for task in (happened, change):
            task.cancel()
        await asyncio.gather(happened, change, return_exceptions=True)
