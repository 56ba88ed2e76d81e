"""Connects to a server of the mesh, with an error for operators where that fails.

Invariants: an address where nothing answers is an error at once or within `CONNECT_TIMEOUT_S`, with the way out; a
server of the wrong kind is distinguished from one that refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from slotmesh.cli.credentials import dialer
from slotmesh.cli.outcome import CommandFailed
from slotmesh.errors import Reason
from slotmesh.security.identity import SERVERS, Role
from slotmesh.status import from_rpc_error, to_exception

CONNECT_TIMEOUT_S: Final = 5.0
"""How long a server may take to answer at all."""

_DETAILS_TIMEOUT_S: Final = 1.0

_State = grpc.ChannelConnectivity


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that a command talks to."""

    kind: str
    """`controller`, `router` or `server`."""
    address: str

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[grpc.aio.Channel]:
        """A channel that is connected. Raises CommandFailed where nothing answers, or certificates do not allow it."""
        problem = ""
        for role in self._roles:
            async with dialer().open(self.address, role) as channel:
                if await _is_reached(channel):
                    yield channel
                    return
                problem = dialer().problem(await _details(channel), role) or ""
                if not problem:
                    break
        if problem:
            raise CommandFailed(f"no connection to {self.kind} {self.address}: {problem}")
        raise self._unreachable(f"no {self.kind} answers at {self.address}")

    @property
    def _roles(self) -> Sequence[Role]:
        """What the server may be: each is tried, as the certificate of a server has the name of its role."""
        return [Role(self.kind)] if self.kind in SERVERS else SERVERS

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turns what rpcs raise into what operators read: SlotmeshError, or CommandFailed for the transport."""
        try:
            yield
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            said_by_peer = rpc_status.from_call(error) is not None  # type: ignore[arg-type]  # as in slotmesh.status
            if failure.reason is Reason.NOT_IMPLEMENTED and not said_by_peer:
                raise self.is_another_kind() from error
            if failure.reason is Reason.ROUTER_LOST and not said_by_peer and self.kind != "router":
                raise CommandFailed(f"the connection to the {self.kind} at {self.address} broke") from error
            raise to_exception(failure) from error

    def is_another_kind(self) -> CommandFailed:
        """What is said where another server answers."""
        return self._unreachable(f"what answers at {self.address} is not a {self.kind}")

    def _unreachable(self, message: str) -> CommandFailed:
        way_out = f"name a {self.kind} with --address HOST:PORT or SLOTMESH_ADDRESS"
        if self.kind != "server":
            way_out += ", or start a mesh with `slotmesh run`"
        return CommandFailed(f"{message}; {way_out}")


async def _details(channel: grpc.aio.Channel) -> str:
    """What gRPC says of a connection that could not be made."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    try:
        await health.Check(health_pb2.HealthCheckRequest(), timeout=_DETAILS_TIMEOUT_S)
    except grpc.RpcError as error:
        return error.details() or ""
    return ""


async def _is_reached(channel: grpc.aio.Channel) -> bool:
    """Waits for the connection, or for the first sign that there will be none."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while (state := channel.get_state(try_to_connect=True)) is not _State.READY:
                if state is _State.TRANSIENT_FAILURE:
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return True
