"""A channel whose rpcs carry a bearer token.

Purpose: what gRPC's call credentials do, without the thread that those start for each rpc, and without interceptors,
whose calls are others than the transport's own.
Invariants: over TLS only, which the `Dialer` sees to. The calls are those of the channel behind it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc

from slotmesh.security.token_source import NoToken, TokenSource
from slotmesh.status import unauthenticated


class TokenChannel(grpc.aio.Channel):
    """Adds `authorization` to the metadata of each rpc."""

    def __init__(self, channel: grpc.aio.Channel, token: TokenSource) -> None:
        """Takes the channel over: closing this one closes it."""
        self._channel = channel
        self._token = token

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.__aexit__(kind, error, traceback)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.unary_unary(*args, **options), self._token)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.unary_stream(*args, **options), self._token)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.stream_unary(*args, **options), self._token)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return _WithToken(self._channel.stream_stream(*args, **options), self._token)


class _WithToken:
    """A multi-callable of any kind."""

    __slots__ = ("_begin", "_token")

    def __init__(self, begin: Any, token: TokenSource) -> None:
        self._begin = begin
        self._token = token

    def __call__(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        """Begins the rpc. Raises AioRpcError, UNAUTHENTICATED, where there is no token to be had."""
        try:
            authorization = self._token.authorization()
        except NoToken as error:
            raise unauthenticated(str(error)) from None
        return self._begin(*args, metadata=(*(metadata or ()), ("authorization", authorization)), **options)
