"""The mesh that a handler belongs to: `slotmesh.mesh()`, and for `def` methods `slotmesh.mesh_sync()`.

Purpose: handlers call other endpoints without knowing the addresses of routers.
Invariants: one client for each replica and kind, created when it is first requested; the one for asyncio belongs to the
handler's event loop. It follows the routers that the controller names, and ends with the replica. Without a mesh, the
functions raise an error with the reason.
Owner: the replica sets `current_source` before it runs code of its handler; tests of handlers may, by
`slotmesh.testing`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception

if TYPE_CHECKING:
    from slotmesh.client.mesh import Mesh, ReplicaMesh
    from slotmesh.client.sync.mesh import SyncMesh, SyncReplicaMesh
    from slotmesh.runtime.channels import Dialer

RunOnLoop = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Calls a function on the handler's event loop, and awaits there what it returns."""

NO_CONTROLLER = (
    "this replica has no controller, and so belongs to no mesh: start it with --controller HOST:PORT, or connect to a "
    "mesh by slotmesh.connect; in a test, slotmesh.testing.mesh has all, and slotmesh.testing.own_mesh sets another one"
)
_NO_ROUTER = Failure(
    reason=Reason.ROUTER_LOST,
    message="the controller has named no router of this mesh yet: see whether one is attached (`slotmesh status`)",
)
_OUTSIDE = (
    "outside of a handler: ask in its methods, or in what they have started; elsewhere slotmesh.connect(ADDRESS) is "
    "the client of a mesh, and in a test slotmesh.testing.own_mesh sets one"
)


class MeshSource(Protocol):
    """The source of a handler's clients."""

    def client(self) -> Mesh:
        """For asyncio. Raises RuntimeError if there is none, RouterLost if no router is known."""

    def sync_client(self) -> SyncMesh:
        """For threads. Raises as `client`."""


class OwnMesh:
    """The clients of one replica's handler. A `MeshSource`."""

    def __init__(self, dialer: Dialer) -> None:
        """`dialer` connects the clients."""
        self._dialer = dialer
        self.loop: asyncio.AbstractEventLoop | None = None
        """The handler's event loop; None before it is known."""
        self.refusal = NO_CONTROLLER
        """Why there is no mesh; empty if there is one."""
        self._lock = threading.Lock()
        """Methods may request a client in any thread."""
        self._addresses: tuple[str, ...] = ()
        self._client: ReplicaMesh | None = None
        self._sync_client: SyncReplicaMesh | None = None

    def follow(self, addresses: Iterable[str]) -> None:
        """The controller has named these routers. An empty list changes nothing: they may be about to attach again."""
        with self._lock:
            self._addresses = tuple(addresses) or self._addresses
            for client in (self._client, self._sync_client):
                if client is not None:
                    client.follow(self._addresses)

    def client(self) -> Mesh:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "slotmesh.mesh() where no event loop runs, as in `def` methods and constructors: there use "
                "slotmesh.mesh_sync(), or ask for it in an `async def` method"
            ) from None
        if self.loop is not None and loop is not self.loop:
            raise RuntimeError(
                "slotmesh.mesh() on another event loop than the handler's own: slotmesh.mesh_sync() may be used in any "
                "thread, and slotmesh.connect(ADDRESS) on any loop"
            )
        with self._lock:
            if self._client is None:
                self._check()
                from slotmesh.client.mesh import ReplicaMesh  # noqa: PLC0415 - loaded when a handler requests one

                self._client = ReplicaMesh(self._addresses, self._dialer)
            return self._client

    def sync_client(self) -> SyncMesh:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                "slotmesh.mesh_sync() on an event loop, which its calls would block: await those of slotmesh.mesh()"
            )
        with self._lock:
            if self._sync_client is None:
                self._check()
                from slotmesh.client.sync.mesh import SyncReplicaMesh  # noqa: PLC0415 - as `client`

                self._sync_client = SyncReplicaMesh(self._addresses, self._dialer)
            return self._sync_client

    async def end(self, run_on_loop: RunOnLoop) -> None:
        """The replica ends: no more calls. Unanswered ones fail."""
        with self._lock:
            self.refusal = "the replica has ended"
            client, sync_client = self._client, self._sync_client
        if client is not None:
            await run_on_loop(client.end)
        if sync_client is not None:
            await asyncio.to_thread(sync_client.end)

    def _check(self) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        if not self._addresses:
            raise to_exception(_NO_ROUTER)


current_source: ContextVar[MeshSource | None] = ContextVar("slotmesh.mesh", default=None)
"""Set before code of a handler runs."""


class ProcessSource:
    """The source of a process without a context of its own: threads that a handler starts have none."""

    def __init__(self) -> None:
        self.source: MeshSource | None = None


of_process = ProcessSource()


def mesh() -> Mesh:
    """The mesh that this handler belongs to: `await slotmesh.mesh().endpoint("rank").score(x)`.

    Calls have at most the time that the call which makes them has left, and continue its trace; a view of an endpoint
    with `options(inherits=False)` has calls that do not. The client is shared, and ends with the replica.

    Raises:
        RuntimeError: not in a handler, or not on its event loop (`mesh_sync` is for threads); or the replica has no
            controller.
        RouterLost: no router of the mesh is known.
    """
    return _source("mesh").client()


def mesh_sync() -> SyncMesh:
    """The same for `def` methods, constructors and threads: `slotmesh.mesh_sync().endpoint("rank").score(x)`.

    Raises:
        RuntimeError: not in a handler, or on an event loop; or the replica has no controller.
        RouterLost: no router of the mesh is known.
    """
    return _source("mesh_sync").sync_client()


def _source(asked: str) -> MeshSource:
    source = current_source.get() or of_process.source
    if source is None:
        raise RuntimeError(f"slotmesh.{asked}() {_OUTSIDE}")
    return source
