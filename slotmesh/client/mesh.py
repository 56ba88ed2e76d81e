"""The client's connection to a mesh; and the client of its own mesh that a replica's handler has.

Invariants: one channel a router, one stream an endpoint, opened by the first call. After `aclose` no future is left
pending.
Owner: the application; used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeVar, Unpack, overload

from slotmesh.client.calls.buffer import MAX_BUFFERED_BYTES, MAX_BUFFERED_CALLS, ClientBuffer
from slotmesh.client.calls.named_methods import check_interface
from slotmesh.client.calls.options import ViewOptions, check_text, checked_seconds
from slotmesh.client.described_endpoints import DescribedEndpoints
from slotmesh.client.endpoint import Endpoint
from slotmesh.client.routers import Routers
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.reservations import ReservationOfAll
from slotmesh.client.slots.terms import AllArguments, timeout_of_all
from slotmesh.client.stream.call_stream import CallStream
from slotmesh.client.tls import Tls, dialer_of
from slotmesh.runtime.allocator import adapt_to_messages
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer, Token
from slotmesh.transport.server_addresses import ServerAddresses

InterfaceT = TypeVar("InterfaceT")

_WITHOUT_ASYNCIO: Final = "without asyncio use slotmesh.connect_sync, whose calls block"


def connect(
    addresses: str | Sequence[str],
    *,
    tls: Tls | None = None,
    token: Token | None = None,
    connect_timeout: float | timedelta = 10.0,
    close_grace: float | timedelta = 30.0,
    max_buffered_calls: int = MAX_BUFFERED_CALLS,
    max_buffered_bytes: int = MAX_BUFFERED_BYTES,
) -> Mesh:
    """A client of a mesh, whose routers listen at `HOST:PORT`. It connects when the first call is made.

    The first router that answers is used. If it is lost, its unanswered calls continue at another one: at any of these
    addresses, or of those that it has named.

    Args:
        addresses: where routers listen: `HOST:PORT`, several with commas between them, or a sequence.
        tls: which servers are trusted, and the certificate of this client; None: plain text.
        token: a bearer token, or a function that gives one and is called for each rpc; it has to be quick. Only with
            `tls`. Replicas, to which direct lanes connect, are not shown it.
        connect_timeout: how long calls wait while no router can be reached; seconds or a timedelta.
        close_grace: how long leaving the `async with` waits for unanswered calls; seconds or a timedelta.
        max_buffered_calls: how many calls may wait in this client to be sent; 65,536. One more fails with
            CLIENT_BUFFER_FULL, executed no, or waits for room where it is made by `await method.send(…)` or `map`. One
            endpoint may have as many, or each tenant there; several that have many get equal parts, and all together an
            eighth more.
        max_buffered_bytes: the same for the bytes of their payloads; 256 MiB.

    Raises:
        ValueError: there is no address, or one is not HOST:PORT; a time or a bound is not positive; certificates or the
            token are unusable; or there is a token without `tls`.
    """
    buffer = buffer_of(max_buffered_calls, max_buffered_bytes)
    return mesh_at(addresses, tls, token, connect_timeout, close_grace, buffer)


def mesh_at(
    addresses: str | Sequence[str],
    tls: Tls | None,
    token: Token | None,
    connect_timeout: float | timedelta,
    close_grace: float | timedelta,
    buffer: ClientBuffer,
) -> Mesh:
    """A client with the arguments of `connect`. Raises as that."""
    connect_timeout_s = checked_seconds("connect_timeout", connect_timeout)
    if not connect_timeout_s > 0:
        raise ValueError(f"connect_timeout must be more than 0 seconds, got {connect_timeout!r}")
    grace_s = grace_of("close_grace", close_grace)
    adapt_to_messages()
    return Mesh(ServerAddresses(addresses), connect_timeout_s, grace_s, dialer=dialer_of(tls, token), buffer=buffer)


def buffer_of(max_calls: Any, max_bytes: Any, *, has_threads: bool = False) -> ClientBuffer:
    """The bound of a client. Raises ValueError for an invalid number."""
    for name, value in (("max_buffered_calls", max_calls), ("max_buffered_bytes", max_bytes)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}")
    return ClientBuffer(max_calls, max_bytes, has_threads=has_threads)


def grace_of(name: str, grace: float | timedelta) -> float:
    """How long to wait for unanswered calls, seconds. Raises ValueError for an invalid duration."""
    grace_s = checked_seconds(name, grace)
    if not grace_s >= 0:
        raise ValueError(f"{name} must be at least 0 seconds, got {grace!r}")
    return grace_s


def _need_loop() -> None:
    """Raises RuntimeError if no event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no event loop runs here: calls of slotmesh.connect are made in an `async def`, as asyncio.run runs one; "
            f"{_WITHOUT_ASYNCIO}"
        ) from None


class Mesh:
    """Endpoints by name. Made by `slotmesh.connect`; in a handler, `slotmesh.mesh` returns the one of its own mesh."""

    def __init__(
        self,
        addresses: ServerAddresses | Sequence[str],
        connect_timeout_s: float,
        close_grace_s: float,
        options: ViewOptions | None = None,
        dialer: Dialer = PLAIN_TEXT,
        buffer: ClientBuffer | None = None,
        *,
        is_spread: bool = False,
    ) -> None:
        """`options`: of its endpoints; None: the defaults. `dialer` connects. `is_spread`: over a list of routers, too.

        `buffer`: bounds the calls that wait to be sent; None: the default bound.
        """
        self._buffer = buffer or ClientBuffer()
        self._options = options or ViewOptions()
        self._servers = ServerAddresses.of(addresses)
        self._routers = Routers(self._servers, dialer, is_spread=is_spread)
        self._connect_timeout_s = connect_timeout_s
        self._close_grace_s = close_grace_s
        self._endpoints: dict[str, Endpoint] = {}
        self._streams: list[CallStream] = []
        self._slots = SlotClient(self._routers, connect_timeout_s)
        self._described = DescribedEndpoints(self._routers)
        self._closed = False

    @overload
    def endpoint(self, name: str) -> Endpoint: ...
    @overload
    def endpoint(self, name: str, interface: Callable[[Endpoint], InterfaceT]) -> InterfaceT: ...
    def endpoint(self, name: str, interface: Callable[[Endpoint], Any] | None = None) -> Any:
        """The endpoint of that name. It need not exist yet: calls fail with ENDPOINT_NOT_FOUND until it does.

        Args:
            name: the name of the endpoint.
            interface: a `slotmesh.Interface`, which declares its methods with their types. None: methods have any.

        Raises:
            RuntimeError: the mesh is closed, or no event loop runs here.
            TypeError: the interface is something else.
            ValueError: the name is empty, or no str.
        """
        if interface is not None:
            check_interface(interface)
            return interface(self.endpoint(name))
        check_text("the name of an endpoint", name)
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            if self._closed:
                raise RuntimeError("the mesh is closed")
            if not name:
                raise ValueError("an endpoint's name must not be empty")
            _need_loop()
            stream = CallStream(name, self._routers, self._connect_timeout_s, buffer=self._buffer)
            self._streams.append(stream)
            endpoint = self._endpoints[name] = Endpoint(stream, self._options, self._slots, self._described)
        return endpoint

    async def endpoints(self) -> dict[str, tuple[str, ...]]:
        """The existing endpoints, by name, each with the names of its callable methods.

        A router returns the methods that connected replicas have reported; empty if none is ready. From then on they
        are among the attributes of the endpoints (`dir`), so that shells complete them.

        Raises:
            RuntimeError: the mesh is closed.
            SlotmeshError: no router has answered.
        """
        if self._closed:
            raise RuntimeError("the mesh is closed")
        return await self._described.learn(timeout_s=self._connect_timeout_s)

    def reserve_all(self, *endpoints: str | Endpoint, **arguments: Unpack[AllArguments]) -> ReservationOfAll:
        """Slots of several endpoints, all or none: `async with mesh.reserve_all("prefill", "decode") as (p, d)`.

        No reservation waits while another one is held. If a slot is not free, all are given back, and that one is
        waited for first; repeatedly, with growing pauses, until all are reserved or the time is over.

        Args:
            *endpoints: names, or views of endpoints. The same one twice is two slots.
            **arguments: any of these.

                `ttl`: length of the leases, as of `Endpoint.reserve`.

                `timeout`: how long to try in total; seconds or a timedelta. 30 s. That of a view does not apply.

        Raises:
            BadRequest: an invalid value, or a view without replies. It is a ValueError, too.
            TypeError: an unknown argument; or an endpoint is neither a name nor a view of this client.
            ValueError: there is no endpoint, or an empty name.
            RuntimeError: the mesh is closed.
        """
        if not endpoints:
            raise ValueError("reserve_all needs the name of an endpoint, or several")
        timeout_s, each = timeout_of_all(arguments)
        views = [self._view_of(endpoint) for endpoint in endpoints]
        return ReservationOfAll(self._slots, [view.reservation_of(each) for view in views], timeout_s)

    def _view_of(self, endpoint: str | Endpoint) -> Endpoint:
        if isinstance(endpoint, str):
            return self.endpoint(endpoint)
        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"reserve_all takes names of endpoints, or what mesh.endpoint gives, got {endpoint!r}")
        return endpoint

    def _grace_of(self, grace: float | timedelta | None) -> float:
        """How long a close waits for unanswered calls, seconds. Raises ValueError for an invalid duration."""
        return self._close_grace_s if grace is None else grace_of("grace", grace)

    async def aclose(self, grace: float | timedelta | None = None) -> None:
        """Makes no more calls, waits for those that are unanswered (at most `grace`), then fails the rest.

        Raises:
            ValueError: the grace is no length of time, or negative. The mesh is not closed.
        """
        grace_s = self._grace_of(grace)
        self._closed = True
        try:
            await asyncio.gather(self._slots.aclose(grace_s), *(stream.aclose(grace_s) for stream in self._streams))
        finally:
            self._buffer.lift()
            for values in [each for stream in self._streams for each in stream.own_values]:
                values.cancel_rpc()
            await self._routers.aclose()
            await self._servers.aclose()

    def __enter__(self) -> NoReturn:
        raise TypeError(f"`async with` is for what slotmesh.connect gives; {_WITHOUT_ASYNCIO}")

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Never called: `with` fails where it begins."""

    async def __aenter__(self) -> Mesh:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Waits for unanswered calls; if an exception passes, cancels them, as their results are not wanted."""
        await self.aclose(None if error is None else 0)

    def __repr__(self) -> str:
        return f"<slotmesh mesh at {', '.join(self._routers.given) or self._servers.text}>"


_REPLICA_CONNECT_TIMEOUT_S: Final = 10.0
"""How long calls of a handler wait while no router can be reached."""
SHARED: Final = "this client is shared by all calls of the replica, and ends with it: it is not for a handler to close"


class FollowingMesh(Mesh):
    """The client of a replica's handler, whose routers are those that the controller names.

    Its calls inherit the remaining time and the trace of the call that makes them, unless a view disables that.
    Owner: the replica, by `slotmesh.client.handler_mesh`.
    """

    def __init__(self, addresses: Sequence[str], dialer: Dialer, *, has_threads: bool = False) -> None:
        """`has_threads`: it is used by a `SyncMesh`."""
        buffer = ClientBuffer(has_threads=has_threads)
        options = ViewOptions(inherits=True)
        super().__init__(addresses, _REPLICA_CONNECT_TIMEOUT_S, 0.0, options, dialer, buffer, is_spread=True)

    def follow(self, addresses: Iterable[str]) -> None:
        """Sets the routers of the mesh. May be called in any thread."""
        self._routers.follow(addresses)


class ReplicaMesh(FollowingMesh):
    """The client that `slotmesh.mesh()` returns."""

    async def aclose(self, grace: float | timedelta | None = None) -> None:
        """Raises RuntimeError: it ends with its replica."""
        del grace  # unused
        raise RuntimeError(SHARED)

    async def end(self) -> None:
        """Ends the client with its replica. Unanswered calls fail."""
        await super().aclose(0.0)
