"""Who calls: one client of the routers for the ingress itself, and one for each bearer token that is in use.

Purpose: a token is shown to routers with each rpc, so that roles and limits of its holder hold there; the ingress
judges no token.
Invariants: at most so many callers, and so many endpoints of each; the one that was used longest ago, and by nobody
now, goes first. Tokens are compared, kept in memory, and in no log.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import count
from typing import Final

from slotmesh.client.stream.call_stream import CallStream
from slotmesh.client.stream.routers import Routers
from slotmesh.runtime.channels import ChannelTls, Dialer
from slotmesh.security.token_source import TokenSource

MAX_ENDPOINTS: Final = 512
"""Of one caller, with streams that are open."""
CLOSE_S: Final = 1.0
_NUMBERS: Final = count(1)


class EndpointCalls:
    """The stream of one endpoint, and how many requests use it."""

    __slots__ = ("in_use", "specs", "stream")

    def __init__(self, stream: CallStream) -> None:
        self.stream = stream
        self.in_use = 0
        self.specs: dict[object, object] = {}
        """What calls on the same terms share: owned by `calls`."""


class HttpCaller:
    """One identity."""

    def __init__(self, routers: Routers, connect_timeout_s: float) -> None:
        self.routers = routers
        self._connect_timeout_s = connect_timeout_s
        self._endpoints: OrderedDict[str, EndpointCalls] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self.in_use = 0
        """Requests for which it was found, and questions that it asks."""
        self.number = next(_NUMBERS)
        """What tells it from all others, of before too."""

    def endpoint(self, name: str) -> EndpointCalls | None:
        """None: too many are in use."""
        found = self._endpoints.get(name)
        if found is None:
            if len(self._endpoints) >= MAX_ENDPOINTS and not self._make_room():
                return None
            stream = CallStream(name, self.routers, self._connect_timeout_s, names_executors=True)
            found = self._endpoints[name] = EndpointCalls(stream)
        else:
            self._endpoints.move_to_end(name)
        return found

    def forget(self, name: str) -> None:
        """There is no such endpoint, as a router has said: its stream is kept for nobody."""
        found = self._endpoints.get(name)
        if found is not None and found.in_use <= 1:
            del self._endpoints[name]
            self._close(found.stream)

    async def aclose(self, grace_s: float) -> None:
        closing = [it.stream.aclose(grace_s) for it in self._endpoints.values()]
        self._endpoints.clear()
        await asyncio.gather(*closing, *self._closing)
        await self.routers.aclose()

    def _make_room(self) -> bool:
        idle = next((name for name, it in self._endpoints.items() if not it.in_use), None)
        if idle is None:
            return False
        self._close(self._endpoints.pop(idle).stream)
        return True

    def _close(self, stream: CallStream) -> None:
        task = asyncio.get_running_loop().create_task(stream.aclose(CLOSE_S), name="close-endpoint")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class HttpCallers:
    """All of them."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        tls: ChannelTls | None,
        *,
        most: int,
        anonymous: bool,
        connect_timeout_s: float,
    ) -> None:
        """`tls`: certificates of the mesh; None: it has none, and tokens mean nothing. `anonymous`: may call as us."""
        self._addresses = addresses
        self._tls = tls
        self._most = most
        self._connect_timeout_s = connect_timeout_s
        self.own = HttpCaller(Routers(addresses, Dialer(tls)), connect_timeout_s)
        self.needs_token = tls is not None and not anonymous
        self.takes_tokens = tls is not None
        self._by_token: OrderedDict[str, HttpCaller] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_token)

    def of(self, token: str) -> HttpCaller | None:
        """The caller of a token; None: too many are in use. Raises ValueError where it can be none."""
        found = self._by_token.get(token)
        if found is not None:
            self._by_token.move_to_end(token)
            return found
        source = TokenSource(token)
        if len(self._by_token) >= self._most:
            idle = next((each for each, it in self._by_token.items() if not it.in_use), None)
            if idle is None:
                return None
            self._close(self._by_token.pop(idle))
        dialer = Dialer(self._tls, source)
        found = self._by_token[token] = HttpCaller(Routers(self._addresses, dialer), self._connect_timeout_s)
        return found

    async def aclose(self, grace_s: float) -> None:
        callers = [self.own, *self._by_token.values()]
        self._by_token.clear()
        await asyncio.gather(*(it.aclose(grace_s) for it in callers), *self._closing)

    def _close(self, caller: HttpCaller) -> None:
        task = asyncio.get_running_loop().create_task(caller.aclose(CLOSE_S), name="close-caller")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
