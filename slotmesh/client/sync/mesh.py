"""A program's connection to a mesh, without asyncio; its endpoints and their lanes.

Invariants: one thread for each mesh, begun by its first endpoint. After `close` no future is left pending. A program
that ends without `close` ends all the same. All threads share endpoints and lanes. The same method of the same view is
the same object, so that its calls travel as one batch.
Owner: the application; used by any of its threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Unpack, overload

from slotmesh.calls.call_options import OptionChanges
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S
from slotmesh.client.calls.buffer import MAX_BUFFERED_BYTES, MAX_BUFFERED_CALLS
from slotmesh.client.calls.named_methods import check_interface
from slotmesh.client.calls.options import AfterFailure, check_text
from slotmesh.client.endpoint import Endpoint, Lane, MethodSpace
from slotmesh.client.mesh import SHARED, FollowingMesh, InterfaceT, Mesh, buffer_of, mesh_at
from slotmesh.client.slots.terms import AllArguments, ReserveArguments
from slotmesh.client.sync.broadcast import SyncBroadcast
from slotmesh.client.sync.call_future import CallFuture
from slotmesh.client.sync.client_thread import ClientThread
from slotmesh.client.sync.method import SyncMethod, SyncNamedMethods
from slotmesh.client.sync.slots import SyncDirectLanes, SyncReservation, SyncReservationOfAll
from slotmesh.client.tls import Tls
from slotmesh.runtime.channels import Dialer, Token


class SyncMethodSpace(SyncNamedMethods[SyncMethod[Any]]):
    """The methods of an endpoint, or of a lane."""

    _awaited: MethodSpace
    _for_threads = SyncMethod

    def __dir__(self) -> list[str]:
        """Our own names, and the handler's methods. Where they are not known a router is asked, for a second."""
        if not self._awaited._remote_methods:
            with suppress(Exception):  # completion then shows the names that are known
                self._thread.outcome_of_more(self._awaited._learn_methods)
        return sorted({*super().__dir__(), *self._awaited._remote_methods})


class SyncEndpoint(SyncMethodSpace):
    """The public name that clients call: `mesh.endpoint("digits").classify(pixels)`."""

    _awaited: Endpoint
    _broadcast: SyncBroadcast | None = None

    def options(self, **changes: Unpack[OptionChanges]) -> SyncEndpoint:
        """A view of the same endpoint whose calls differ in what is given here. Make it once, and keep it.

        `slotmesh.OptionChanges` documents the options.

        Raises:
            BadRequest: an invalid value, or both kinds of SLO. It is a ValueError, too.
            TypeError: an unknown option.
        """
        with self._thread.lock:
            return SyncEndpoint(self._thread, self._awaited.options(**changes))

    def reserve(self, **arguments: Unpack[ReserveArguments]) -> SyncReservation:
        """A slot, for one call whose replica is known before it is made: `with digits.reserve() as slot`.

        It is renewed while the block runs, and given back when the block is left without a call. Arguments are those of
        `slotmesh.Endpoint.reserve`.

        Raises:
            BadRequest: a value that no reservation may have, or a view without replies. It is a ValueError, too.
            TypeError: there is no such argument.
        """
        with self._thread.lock:
            return SyncReservation(self._thread, self._awaited.reserve(**arguments))

    def direct(
        self, slots: int = 1, *, ttl: float | timedelta = DEFAULT_LEASE_S, idle: float | timedelta | None = None
    ) -> SyncDirectLanes:
        """Calls straight to replicas, in slots that are held: `with digits.direct(slots=4) as lanes`.

        Arguments and errors are those of `slotmesh.Endpoint.direct`. Threads share the slots.
        """
        with self._thread.lock:
            return SyncDirectLanes(self._thread, self._awaited.direct(slots, ttl=ttl, idle=idle))

    @property
    def broadcast(self) -> SyncBroadcast:
        """Calls on every replica, with an outcome for each: `results = digits.broadcast.drop_cache()`."""
        with self._thread.lock:
            if self._broadcast is None:
                self._broadcast = SyncBroadcast(self._thread, self._awaited.broadcast)
            return self._broadcast

    def ordered(self, key: str, *, after_failure: AfterFailure = "continue") -> SyncLane:
        """A lane: calls of one ordering key, executed one after another, in the order in which they were made.

        Args:
            key: the ordering key.
            after_failure: what the calls after one that has failed do: "continue", or "stop": they fail with
                PredecessorFailed, and are not executed, until `SyncLane.reset`.

        Raises:
            BadRequest: the key is empty or longer than 1,024 bytes, or after_failure is something else. It is a
                ValueError, too.
        """
        with self._thread.lock:
            return SyncLane(self._thread, self._awaited.ordered(key, after_failure=after_failure))


class SyncLane(SyncMethodSpace):
    """Calls of one ordering key. All lanes of a key are one lane, within a client and in the mesh.

    Calls that one thread makes are in the order of its statements, also those that it does not wait for. Calls of
    several threads are in the order in which they happened to be made.

    `with` waits on its way out until all calls of the key have their outcomes, unless an exception passes.
    """

    _awaited: Lane

    def options(self, **changes: Unpack[OptionChanges]) -> SyncLane:
        """A view of the same lane whose calls differ in what is given here, as `Endpoint.options`.

        Raises:
            BadRequest: an invalid value, or both kinds of SLO. It is a ValueError, too.
            TypeError: an unknown option.
        """
        with self._thread.lock:
            return SyncLane(self._thread, self._awaited.options(**changes))

    def reset(self) -> None:
        """Calls made from now on are executed, whatever failed before. Calls of a lane that continues always are.

        Raises:
            RuntimeError: the mesh is closed, or belongs to another process.
        """
        self._thread.hand_over(CallFuture(self._thread.work), self._reset, None)

    def __enter__(self) -> SyncLane:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self._thread.outcome_of_more(partial(self._awaited.__aexit__, None, None, None))

    def _reset(self, _future: CallFuture[None], _nothing: None) -> None:
        with self._thread.lock:  # the lane's methods are made anew
            self._awaited.reset()


def connect_sync(
    addresses: str | Sequence[str],
    *,
    tls: Tls | None = None,
    token: Token | None = None,
    connect_timeout: float | timedelta = 10.0,
    close_grace: float | timedelta = 30.0,
    max_buffered_calls: int = MAX_BUFFERED_CALLS,
    max_buffered_bytes: int = MAX_BUFFERED_BYTES,
) -> SyncMesh:
    """A client of a mesh for programs without asyncio: its calls block, and any thread may make them.

    It has one thread of its own, with an event loop on which `slotmesh.connect` does the work.

    Args:
        addresses: where routers listen: `HOST:PORT`, several with commas between them, or a sequence.
        tls: whose servers are trusted, and by which certificate this client is known; None: plain text.
        token: a bearer token, or a function that gives one and is called for each rpc, in the client's thread; it has
            to be quick. Only with `tls`. Replicas, to which direct lanes connect, are not shown it.
        connect_timeout: how long calls wait where no router can be reached; seconds or a timedelta.
        close_grace: how long leaving the `with` waits for unanswered calls; seconds or a timedelta.
        max_buffered_calls: how many calls may wait in this client to be sent; 65,536. One more waits for room in its
            thread, or fails with CLIENT_BUFFER_FULL, executed no, where it is made by `method.future(…)` or `stream`.
            One endpoint may have as many, or each tenant there; several that have many get equal parts, and all
            together an eighth more.
        max_buffered_bytes: the same for the bytes of their payloads; 256 MiB.

    Raises:
        ValueError: an address is not HOST:PORT, or there is none, or a time or a bound is not positive; or certificates
            cannot be used, or the token can be none, or is given without `tls`.
        RuntimeError: gevent has patched threads in this process.
    """
    _refuse_gevent()
    buffer = buffer_of(max_buffered_calls, max_buffered_bytes, has_threads=True)
    return SyncMesh(mesh_at(addresses, tls, token, connect_timeout, close_grace, buffer))


def _refuse_gevent() -> None:
    """Raises RuntimeError where threads are greenlets: the client's would run an event loop that no other gets past."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError(
            "gevent.monkey has patched `threading` in this process, and slotmesh.connect_sync needs a thread of the"
            " operating system: leave that out, as in patch_all(thread=False), or make calls in a process"
            " that is not patched"
        )


class SyncMesh:
    """Endpoints by name. Made by `slotmesh.connect_sync`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._thread = ClientThread(mesh)
        self._endpoints: dict[str, SyncEndpoint] = {}

    @overload
    def endpoint(self, name: str) -> SyncEndpoint: ...
    @overload
    def endpoint(self, name: str, interface: Callable[[SyncEndpoint], InterfaceT]) -> InterfaceT: ...
    def endpoint(self, name: str, interface: Callable[[SyncEndpoint], Any] | None = None) -> Any:
        """The endpoint of that name. It need not exist yet: calls fail with ENDPOINT_NOT_FOUND until it does.

        Arguments are those of `slotmesh.Mesh.endpoint`.

        Raises:
            RuntimeError: the mesh is closed, or was used before this process was forked.
            TypeError: the interface is something else.
            ValueError: the name is empty, or no str.
        """
        if interface is not None:
            check_interface(interface)
            return interface(self.endpoint(name))
        check_text("the name of an endpoint", name)
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            self._thread.start()
            made = SyncEndpoint(self._thread, self._thread.call(partial(self._mesh.endpoint, name)))
            endpoint = self._endpoints.setdefault(name, made)
        return endpoint

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """The existing endpoints, by name, each with the names of its callable methods.

        A router returns the methods that connected replicas have reported; empty if none is ready. From then on they
        are among the attributes of the endpoints (`dir`), so that shells complete them.

        Raises:
            RuntimeError: the mesh is closed, or was used before this process was forked.
            SlotmeshError: no router has answered.
        """
        self._thread.start()
        return self._thread.outcome_of_more(self._mesh.endpoints)

    def reserve_all(self, *endpoints: str | SyncEndpoint, **arguments: Unpack[AllArguments]) -> SyncReservationOfAll:
        """Slots of several endpoints, all or none: `with mesh.reserve_all("prefill", "decode") as (p, d)`.

        Arguments are those of `slotmesh.Mesh.reserve_all`.

        Raises:
            BadRequest: a value that no reservation may have, or a view without replies. It is a ValueError, too.
            TypeError: there is no such argument; or an endpoint is neither a name nor a view of this client.
            ValueError: there is no endpoint, or an empty name.
            RuntimeError: the mesh is closed, or was used before this process was forked.
        """
        views = [self._view_of(each) for each in endpoints]
        with self._thread.lock:
            inner = self._mesh.reserve_all(*(view._awaited for view in views), **arguments)
            return SyncReservationOfAll(self._thread, inner)

    def _view_of(self, endpoint: str | SyncEndpoint) -> SyncEndpoint:
        if isinstance(endpoint, str):
            return self.endpoint(endpoint)
        if not isinstance(endpoint, SyncEndpoint):
            raise TypeError(f"reserve_all takes names of endpoints, or what mesh.endpoint gives, got {endpoint!r}")
        return endpoint

    def close(self, grace: float | timedelta | None = None) -> None:
        """Makes no more calls, waits for those that are unanswered (at most `grace`), then fails the rest.

        Nothing in a forked process: there it is its parent's.

        Raises:
            RuntimeError: this is a callback of a future.
            ValueError: the grace is no length of time, or negative. The mesh is not closed.
        """
        self._thread.close(self._mesh._grace_of(grace))

    def __enter__(self) -> SyncMesh:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Waits for unanswered calls; if an exception passes, cancels them, as their results are not wanted."""
        self.close(None if error is None else 0)

    def __repr__(self) -> str:
        return repr(self._mesh)


class SyncReplicaMesh(SyncMesh):
    """The client that `slotmesh.mesh_sync()` returns."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer) -> None:
        following = FollowingMesh(addresses, dialer, has_threads=True)
        super().__init__(following)
        self.follow = following.follow
        """As that of `FollowingMesh`."""

    def close(self, grace: float | timedelta | None = None) -> None:
        """Raises RuntimeError: it ends with its replica."""
        del grace  # unused
        raise RuntimeError(SHARED)

    def end(self) -> None:
        """Ends the client with its replica. Unanswered calls fail."""
        super().close(0.0)
