"""The client that a replica's handler has of the mesh that the replica belongs to.

Invariants: its calls take over what the call has left in which they are made, and its trace, unless a view says
otherwise; it follows the routers that the controller names; it ends with its replica, and by nothing that a handler
does.
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
"""How long calls wait where no router can be reached."""
_SHARED: Final = "this client is shared by all calls of the replica, and ends with it: it is not for a handler to close"


class FollowingMesh(Mesh):
    """A client that is told where the routers are."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer, *, has_threads: bool = False) -> None:
        """`has_threads`: it is used by a `SyncMesh`."""
        buffer = ClientBuffer(has_threads=has_threads)
        super().__init__(addresses, CONNECT_TIMEOUT_S, 0.0, ViewOptions(inherits=True), dialer, buffer)

    def follow(self, addresses: Iterable[str]) -> None:
        """These are the routers of the mesh now. May be called in any thread."""
        self._routers.follow(addresses)


class ReplicaMesh(FollowingMesh):
    """What `slotmesh.mesh()` gives."""

    async def aclose(self, grace: float | timedelta | None = None) -> None:
        """Raises RuntimeError: it ends with its replica."""
        del grace  # there is nothing to wait for
        raise RuntimeError(_SHARED)

    async def end(self) -> None:
        """The replica ends. What is unanswered fails."""
        await super().aclose(0.0)


class SyncReplicaMesh(SyncMesh):
    """What `slotmesh.mesh_sync()` gives."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer) -> None:
        following = FollowingMesh(addresses, dialer, has_threads=True)
        super().__init__(following, 0.0)
        self.follow = following.follow
        """As that of `FollowingMesh`."""

    def close(self, grace: float | timedelta | None = None) -> None:
        """Raises RuntimeError: it ends with its replica."""
        del grace  # there is nothing to wait for
        raise RuntimeError(_SHARED)

    def end(self) -> None:
        """The replica ends. What is unanswered fails."""
        super().close(0.0)
