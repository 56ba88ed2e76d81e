"""Rpcs that a server does not know when it starts: those of users' own protos, which come and go.

Purpose: they are guarded and let in as all others are, by one rule for all of them, as their protos declare no roles.
Invariants: what is not found here gets the answer that gRPC itself has. Handlers are kept for the rpcs that were called
last, and made anew where the service finds others.
Owner: the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import grpc

from slotmesh.calls.payload_framing import MESH_SERVICES
from slotmesh.grpc_internals.aborts import released
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.identity import Role
from slotmesh.security.permissions import Rule
from slotmesh.server.edge import Edge, admitted
from slotmesh.server.guards import guard
from slotmesh.server.reflection import Descriptors
from slotmesh.telemetry.process_times import RpcTimes

CALLERS: Final = (Role.INVOKER, Role.REPLICA)
"""Who may call them, as far as the endpoint is theirs."""
MAX_KNOWN: Final = 4096
_UNKNOWN: Final = "unknown"
"""How rpcs are counted that nobody has: their names are the clients'."""


class OwnRpcs(Protocol):
    """What serves them."""

    @property
    def services(self) -> Sequence[str]:
        """Full names of the services that there are now."""

    @property
    def descriptors(self) -> Sequence[Descriptors]:
        """What reflection tells of them."""

    def kind_of(self, path: str) -> Any:
        """Of which kind the rpc `package.Service/Method` is; None where it is not known."""

    def handler_of(self, path: str) -> Any:
        """What serves it, known or not."""


class OwnRpcHandlers(grpc.GenericRpcHandler):
    """Asked for each rpc: for those of users' own protos at once, as they are many, and for none of the mesh's own."""

    def __init__(self, own: OwnRpcs, name: str, turns: StepQueue, times: RpcTimes, edge: Edge) -> None:
        """`name`, `turns`, `times` and `edge` as for other rpcs of the server."""
        self._own = own
        self._guard: Callable[..., Any] = lambda handler, label: guard(
            handler, method=label, server=name, turns=turns, times=times
        )
        self._edge = edge
        self._known: dict[str, tuple[Any, Any]] = {}
        """By path: the kind that it had, and its handler."""

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
