"""The client, for asyncio: `connect`, endpoints, methods, lanes."""

from __future__ import annotations

from slotmesh.client.endpoint import Endpoint, Lane
from slotmesh.client.mesh import Mesh, connect
from slotmesh.client.method import Method
from slotmesh.client.streaming import ValueStream

__all__ = ["Endpoint", "Lane", "Mesh", "Method", "ValueStream", "connect"]
