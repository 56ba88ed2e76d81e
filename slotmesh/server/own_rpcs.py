"""Rpcs of users' own protos, which appear and disappear while a server runs.

Purpose: they are guarded and admitted like all others, by one rule for all, as their protos declare no roles.
Invariants: an unknown rpc gets gRPC's own response. Handlers of the most recently called rpcs are cached, and made
again
when their kind changes.
Owner: the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc

from slotmesh.calls.payload_framing import MESH_SERVICES
from slotmesh.grpc_internals.aborts import released
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.identity import Role
from slotmesh.security.permissions import Rule
from slotmesh.server.edge import Edge, admitted
from slotmesh.server.guards import guard
from slotmesh.server.reflection import MoreServices
from slotmesh.telemetry.process_times import RpcTimes

CALLERS: Final = (Role.INVOKER, Role.REPLICA)
"""Roles that may call them; endpoints are authorised separately."""
MAX_KNOWN: Final = 4096
_UNKNOWN: Final = "unknown"
"""The method label of unknown rpcs, whose names clients choose."""


class OwnRpcs(MoreServices, Protocol):
    """The source of users' own rpcs: the router's, which is not known here."""

    def kind_of(self, path: str) -> Any:
        """The kind of the rpc `package.Service/Method`; None if it is unknown."""

    def handler_of(self, path: str) -> Any:
        """The handler of the rpc, known or not."""


class OwnRpcHandlers(grpc.GenericRpcHandler):
    """The generic handler for users' own rpcs; returns None for the mesh's services."""

    def __init__(self, own: OwnRpcs, name: str, turns: StepQueue, times: RpcTimes, edge: Edge) -> None:
        """`name`, `turns`, `times` and `edge` as for other rpcs of the server."""
        self._own = own
        self._guard: Callable[..., Any] = lambda handler, label: guard(
            handler, method=label, server=name, turns=turns, times=times
        )
        self._edge = edge
        self._known: dict[str, tuple[Any, Any]] = {}
        """By path: the kind of the rpc, and its handler."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler of one rpc."""
        path = details.method[1:]
        if path.startswith(MESH_SERVICES):
            return None
        kind = self._own.kind_of(path)
        if (known := self._known.get(path)) is not None and known[0] == kind:
            return known[1]
        guarded = self._guard(self._own.handler_of(path), path if kind is not None else _UNKNOWN)
        made = released(admitted(guarded, Rule(path, CALLERS), self._edge))
        if kind is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[path] = (kind, made)
        return made
