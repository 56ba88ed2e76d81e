"""Callers: one client of the routers for the ingress itself, and one for each bearer token that routers have taken.

Purpose: a token is shown to routers with each rpc, so that roles and limits of its holder hold there; the ingress
judges no token.
Invariants: a token has a place here only once a router has taken it, and loses it when one refuses it; the number of
callers, and of endpoints of each, is bounded; the unused one with the oldest use goes first. Tokens are compared, kept
in memory, and in no log.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final, TypeVar

import grpc

from ingress_service.core.peers import Requester
from ingress_service.core.stream_choice import StreamChoice
from slotmesh.client.routers import Routers, refusal_of
from slotmesh.client.stream.call_stream import CallStream
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import ChannelTls, Dialer, TokenSource
from slotmesh.status import to_exception
from slotmesh.transport.server_addresses import ServerAddresses

MAX_ENDPOINTS: Final = 512
"""Of one caller, with streams that are open."""
MAX_STREAMS: Final = 8
"""Of one caller and endpoint."""
CLOSE_S: Final = 1.0
_NUMBERS: Final = count(1)


class OpenedStream:
    """One stream of an endpoint."""

    __slots__ = ("specs", "stream")

    def __init__(self, stream: CallStream) -> None:
        self.stream = stream
        self.specs: dict[object, object] = {}
        """What calls on the same terms share: owned by `calls`."""


class EndpointCalls:
    """The streams of one endpoint, and how many requests use them."""

    __slots__ = ("_choice", "_open", "in_use", "streams")

    def __init__(self, name: str, routers: Routers, connect_timeout_s: float) -> None:
        self.in_use = 0
        self.streams: list[OpenedStream] = []
        """Those that were needed up to now."""
        self._choice = StreamChoice(MAX_STREAMS)
        self._open = partial(CallStream, name, routers, connect_timeout_s, names_executors=True)

    @contextmanager
    def calling(self, who: Requester, size: int, ordering_key: str) -> Iterator[OpenedStream]:
        """The stream for one call with `size` bytes of arguments, while it is under way."""
        chosen = self._choice.take(who, size, ordering_key)
        try:
            while len(self.streams) <= chosen.stream:
                self.streams.append(OpenedStream(self._open()))
            yield self.streams[chosen.stream]
        finally:
            self._choice.give(chosen)

    async def aclose(self, grace_s: float) -> None:
        await asyncio.gather(*(it.stream.aclose(grace_s) for it in self.streams))


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
        """Unique, among earlier callers too."""

    def endpoint(self, name: str) -> EndpointCalls | None:
        """None: too many are in use."""
        found = self._endpoints.get(name)
        if found is None:
            if len(self._endpoints) >= MAX_ENDPOINTS and not self._make_room():
                return None
            found = self._endpoints[name] = EndpointCalls(name, self.routers, self._connect_timeout_s)
        else:
            self._endpoints.move_to_end(name)
        return found

    def forget(self, name: str) -> None:
        """A router has reported that there is no such endpoint: its stream is not kept."""
        found = self._endpoints.get(name)
        if found is not None and found.in_use <= 1:
            del self._endpoints[name]
            self._close(found)

    async def aclose(self, grace_s: float) -> None:
        closing = [it.aclose(grace_s) for it in self._endpoints.values()]
        self._endpoints.clear()
        await asyncio.gather(*closing, *self._closing)
        await self.routers.aclose()

    def _make_room(self) -> bool:
        idle = next((name for name, it in self._endpoints.items() if not it.in_use), None)
        if idle is None:
            return False
        self._close(self._endpoints.pop(idle))
        return True

    def _close(self, calls: EndpointCalls) -> None:
        task = asyncio.get_running_loop().create_task(calls.aclose(CLOSE_S), name="close-endpoint")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class HttpCallers:
    """All of them."""

    def __init__(
        self, routers: ServerAddresses, tls: ChannelTls | None, *, most: int, anonymous: bool, connect_timeout_s: float
    ) -> None:
        """`routers` are closed with it. `tls`: certificates of the mesh; None: it has none, and tokens mean nothing.

        `anonymous`: may call as us.
        """
        self._servers = routers
        self._tls = tls
        self._most = most
        self._connect_timeout_s = connect_timeout_s
        self.own = HttpCaller(Routers(routers, Dialer(tls)), connect_timeout_s)
        self.needs_token = tls is not None and not anonymous
        self.takes_tokens = tls is not None
        self._by_token: OrderedDict[str, HttpCaller] = OrderedDict()
        self._refused: set[HttpCaller] = set()
        """Those whose tokens routers take no more, and that were in use then."""
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_token)

    def known(self, token: str) -> HttpCaller | None:
        """The caller of a token that a router has taken; None if it has no place here."""
        found = self._by_token.get(token)
        if found is not None:
            self._by_token.move_to_end(token)
        return found

    def taken(self, token: str) -> HttpCaller | None:
        """A router has taken this token: its caller; None: too many are in use."""
        self._sweep()
        if (found := self.known(token)) is not None:
            return found
        if len(self._by_token) >= self._most:
            idle = next((each for each, it in self._by_token.items() if not it.in_use), None)
            if idle is None:
                return None
            self._close(self._by_token.pop(idle))
        dialer = Dialer(self._tls, TokenSource(token))
        found = self._by_token[token] = HttpCaller(Routers(self._servers, dialer), self._connect_timeout_s)
        return found

    def refused(self, caller: HttpCaller) -> None:
        """A router has refused its token, which has to be taken anew."""
        token = next((each for each, it in self._by_token.items() if it is caller), None)
        if token is not None:
            self._refused.add(self._by_token.pop(token))
            self._sweep()

    async def aclose(self, grace_s: float) -> None:
        callers = [self.own, *self._by_token.values(), *self._refused]
        self._by_token.clear()
        self._refused.clear()
        await asyncio.gather(*(it.aclose(grace_s) for it in callers), *self._closing)
        await self._servers.aclose()

    def _sweep(self) -> None:
        for caller in [it for it in self._refused if not it.in_use]:
            self._refused.discard(caller)
            self._close(caller)

    def _close(self, caller: HttpCaller) -> None:
        task = asyncio.get_running_loop().create_task(caller.aclose(CLOSE_S), name="close-caller")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


ASK_S: Final = 2.0
"""What one router gets for its answer."""
_OF_ONE_ROUTER: Final = frozenset(
    {
        Reason.ROUTER_LOST,
        Reason.DEADLINE_RUNNING,
        Reason.NOT_IMPLEMENTED,
        Reason.DRAINING,
        Reason.STALE_TABLE,
        Reason.CANCELLED,
        Reason.INTERNAL,
    }
)
"""Failures of one router: the next one is asked."""

AnswerT = TypeVar("AnswerT")


async def ask_routers(caller: HttpCaller, ask: Callable[[str], Awaitable[AnswerT]], endpoint: str = "") -> AnswerT:
    """The first answer to a unary rpc that any router can answer; they are asked as the caller, one after the other.

    `ask` is given an address. Raises SlotmeshError if no router has answered.
    """
    failure = Failure(reason=Reason.ROUTER_LOST, message="no router can be reached")
    if not await caller.routers.found(ASK_S):
        failure = caller.routers.unreachable(ASK_S)
    for address in caller.routers.in_turn(""):
        try:
            return await ask(address)
        except grpc.RpcError as error:
            caller.routers.look_again()
            failure = refusal_of(error, address, caller.routers.dialer)
            if failure.reason not in _OF_ONE_ROUTER:
                break
    raise to_exception(failure, endpoint=endpoint)
