"""The ingress's metrics on its HTTP port: for viewers, where the mesh has certificates.

Invariants: the ingress judges no token: whether who asks is a viewer is a router's to say, of which an rpc for viewers
is asked in its name; one page is made at a time, and who asks meanwhile gets the same.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ingress_service.shell.asking import ASK_S, ask_routers
from ingress_service.shell.callers import HttpCaller

_FOR_VIEWERS: Final = "/grpc.health.v1.Health/List"
"""An rpc of routers that is for viewers, whose request says nothing."""
_OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"
Page = tuple[str, bytes]
"""Content type and text."""


class Scrapes:
    """Answers them."""

    def __init__(self, make: Callable[[str], Awaitable[Page]], *, is_open: bool) -> None:
        """`make` is given what a request accepts. `is_open`: the mesh has no certificates, and all may see it."""
        self._make = make
        self._is_open = is_open
        self._made: dict[str, asyncio.Task[Page]] = {}

    async def check(self, caller: HttpCaller) -> None:
        """Raises SlotmeshError where the caller is no viewer, or no router says whether it is."""
        if self._is_open:
            return

        async def ask(address: str) -> bytes:
            call = caller.routers.channel(address).unary_unary(_FOR_VIEWERS, bytes, bytes)
            return await call(b"", timeout=ASK_S)

        await ask_routers(caller, ask)

    async def page(self, accept: str) -> Page:
        """The metrics of now."""
        form = _OPEN_METRICS if "openmetrics" in accept else ""
        if (made := self._made.get(form)) is None:
            made = self._made[form] = asyncio.ensure_future(self._make(form))
            made.add_done_callback(lambda _: self._made.pop(form, None))
        return await asyncio.shield(made)
