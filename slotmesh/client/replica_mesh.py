"""The client of the mesh that a replica's handler has.

Invariants: its calls inherit the remaining time and the trace of the call that makes them, unless a view disables that;
it follows the routers that the controller names; it ends with its replica, and a handler cannot close it.
Owner: the replica, by `slotmesh.client.handler_mesh`; used on the handler's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from slotmesh.client.calls.buffer import ClientBuffer
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.mesh import Mesh
from slotmesh.client.sync.mesh import SyncMesh
from slotmesh.runtime.channels import Dialer

CONNECT_TIMEOUT_S: Final = 10.0
"""How long calls wait while no router can be reached."""
_SHARED: Final = "this client is shared by all calls of the replica, and ends with it: it is not for a handler to close"


class FollowingMesh(Mesh):
    """A client whose routers are set from outside."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer, *, has_threads: bool = False) -> None:
        """`has_threads`: it is used by a `SyncMesh`."""
        buffer = ClientBuffer(has_threads=has_threads)
        super().__init__(addresses, CONNECT_TIMEOUT_S, 0.0, ViewOptions(inherits=True), dialer, buffer)

    def follow(self, addresses: Iterable[str]) -> None:
        """Sets the routers of the mesh. May be called in any thread."""
        self._routers.follow(addresses)


class ReplicaMesh(FollowingMesh):
    """The client that `slotmesh.mesh()` returns."""

    async def aclose(self, grace: float | timedelta | None = None) -> None:
        """Raises RuntimeError: it ends with its replica."""
        del grace  # unused
        raise RuntimeError(_SHARED)

    async def end(self) -> None:
        """Ends the client with its replica. Unanswered calls fail."""
        await super().aclose(0.0)


class SyncReplicaMesh(SyncMesh):
    """The client that `slotmesh.mesh_sync()` returns."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer) -> None:
        following = FollowingMesh(addresses, dialer, has_threads=True)
        super().__init__(following, 0.0)
        self.follow = following.follow
        """As that of `FollowingMesh`."""

    def close(self, grace: float | timedelta | None = None) -> None:
        """Raises RuntimeError: it ends with its replica."""
        del grace  # unused
        raise RuntimeError(_SHARED)

    def end(self) -> None:
        """Ends the client with its replica. Unanswered calls fail."""
        super().close(0.0)
