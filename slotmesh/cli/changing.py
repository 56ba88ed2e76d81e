"""A command's connection to the controller, on which each change takes effect once even if its reply is lost.

Purpose: each changing request carries a random id. If the connection breaks before the reply, the request is sent once
more with the same id, to the controller that leads then. While a command waits for the effects of its change, its
queries move to the new leader, too (`hold_on`). Scaling a backend and the requests about HTTP routes are built on this.
Invariants: a request is repeated only if both the controller that got it first and the one that gets the repetition
know request ids: an older controller would apply it twice. Changes that no store holds are repeated only to the same
leader, since another one does not know the id. Refusals are never repeated. One channel is open, and a second one only
while the connection is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from slotmesh.cli.connection import ConnectionBroke, Peer, is_lost, leader_among, standing_of
from slotmesh.cli.console import CommandFailed, say
from slotmesh.cli.snapshot import ControllerStatus
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.ids import new_id
from slotmesh.spec.writing import UNSET
from slotmesh.status import from_rpc_error
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import route_service_pb2

STORED_ON_HOLD: Final = (
    "slotmesh: the controller is on hold: the change is stored, and takes no effect before an operator ends the hold"
    " (`slotmesh status` shows how)"
)
BACK_WITHIN_S: Final = 10.0
"""The time limit after a lost reply for the controller to respond again, or for another one to lead."""
_LOOK_EVERY_S: Final = 0.1


def _changing(service: ServiceDescriptor) -> frozenset[str]:
    """The rpcs with a `request_id` in their requests."""
    return frozenset(rpc.name for rpc in service.methods if "request_id" in rpc.input_type.fields_by_name)


CHANGING: Final = _changing(pb.DESCRIPTOR.services_by_name["ControllerService"]) | _changing(
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"]
)
"""Rpcs of controllers that change state."""
UNSTORED: Final = frozenset({"DrainReplica", "ForgetReplica"})
"""Changing rpcs whose ids are not stored: only the leader that executed the request knows its id."""
QUESTIONS: Final = (
    frozenset(
        rpc.name
        for service in (
            pb.DESCRIPTOR.services_by_name["ControllerService"],
            route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
        )
        for rpc in service.methods
        if rpc.name.startswith(("Get", "List", "Describe")) and not rpc.server_streaming
    )
    - CHANGING
)
"""Rpcs of controllers that change nothing and have a single response."""


class ControllerConnection:
    """A channel to the leading controller; replaced by one to a new leader after a lost reply."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._opened = AsyncExitStack()
        """Closes the channel."""
        self._known: ControllerStatus | None = None
        """The status that the controller reported first on this channel."""
        self._holds_on_s = 0.0
        self.reconnects = 0
        """The number of broken connections that were replaced."""
        self.peer: Peer
        self.channel: grpc.aio.Channel

    @classmethod
    @asynccontextmanager
    async def open(cls, addresses: Sequence[str]) -> AsyncIterator[ControllerConnection]:
        """Connects to the controller that leads. Raises CommandFailed if none does."""
        connection = cls(addresses)
        try:
            await connection._connect()
            yield connection
        finally:
            await connection._opened.aclose()

    def stub(self, kind: type[Any]) -> Any:
        """A stub of that class that repeats a changing rpc after a lost reply, if that is safe."""
        return _RepeatingStub(self, kind)

    async def known_standing(self) -> ControllerStatus:
        """The status that the controller reported first on this channel."""
        if self._known is None:
            try:
                self._known = await standing_of(self.channel, self.peer)
            except (CommandFailed, SlotmeshError):
                # The response to the request itself explains the failure.
                self._known = ControllerStatus(address=self.peer.address, leads=False)
        return self._known

    @property
    def is_on_hold(self) -> bool:
        """Whether the controller last reported that it reconciles nothing: changes are stored, without effect."""
        return self._known is not None and self._known.is_on_hold

    def hold_on(self, within_s: float) -> None:
        """From now on, repeats a query whose connection breaks, if a controller leads within that time."""
        self._holds_on_s = within_s

    async def standing(self) -> ControllerStatus:
        """The current status of the controller."""
        while True:
            try:
                return await standing_of(self.channel, self.peer)
            except ConnectionBroke:
                if not await self.is_back():
                    raise

    async def is_back(self) -> bool:
        """Reconnects after a broken connection, if `hold_on` was called. Returns whether a leader is connected."""
        return self._holds_on_s > 0 and await self.reconnect(self._holds_on_s)

    async def reconnect(self, within_s: float = BACK_WITHIN_S) -> bool:
        """Connects to the current leader. Returns False if there is none within `within_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while loop.time() < deadline:
            with suppress(CommandFailed, SlotmeshError):
                await self._connect()
                standing = await standing_of(self.channel, self.peer)
                if standing.leads:
                    self._known = standing
                    self.reconnects += 1
                    return True
            await asyncio.sleep(_LOOK_EVERY_S)
        return False

    async def _connect(self) -> None:
        peer = Peer("controller", await leader_among(self._addresses))
        async with AsyncExitStack() as opening:
            channel = await opening.enter_async_context(peer.connect())
            before, self._opened = self._opened, opening.pop_all()
        self.channel, self.peer, self._known = channel, peer, None
        await before.aclose()


def _may_repeat(rpc: str, first: ControllerStatus, now: ControllerStatus) -> bool:
    """Whether a request that `first` may have carried out takes effect once if the present leader gets it again."""
    if not (first.knows_request_ids and now.knows_request_ids):
        return False
    is_same = bool(now.generation) and (now.generation, now.term) == (first.generation, first.term)
    return is_same or rpc not in UNSTORED


class _RepeatingStub:
    """Looks like a stub, and raises as one does."""

    def __init__(self, connection: ControllerConnection, kind: type[Any]) -> None:
        self._connection = connection
        self._kind = kind
        self._stub: Any = None
        self._channel: grpc.aio.Channel | None = None

    def __getattr__(self, rpc: str) -> Any:
        if rpc in CHANGING:
            return partial(self._change, rpc)
        return partial(self._ask, rpc) if rpc in QUESTIONS else getattr(self._current(), rpc)

    def _current(self) -> Any:
        if self._channel is not self._connection.channel:
            self._channel = self._connection.channel
            self._stub = self._kind(self._channel)
        return self._stub

    async def _ask(self, rpc: str, request: Any, **terms: Any) -> Any:
        while True:
            try:
                return await getattr(self._current(), rpc)(request, **terms)
            except grpc.RpcError as error:
                if not (is_lost(error) and await self._connection.is_back()):
                    raise

    async def _change(self, rpc: str, request: Any, **terms: Any) -> Any:
        request.request_id = new_id()
        connection = self._connection
        first = await connection.known_standing()
        try:
            response = await getattr(self._current(), rpc)(request, **terms)
            if first.is_on_hold and rpc != "AdoptState" and not getattr(request, "dry_run", False):
                say(STORED_ON_HOLD, err=True)
            return response
        except grpc.RpcError as error:
            if not (first.knows_request_ids and is_lost(error) and await connection.reconnect()):
                raise
            if not _may_repeat(rpc, first, await connection.known_standing()):
                raise
        return await getattr(self._current(), rpc)(request, **terms)


ATTEMPTS: Final = 10
"""The number of attempts while other clients change the configuration in between."""


async def set_num_replicas(
    stub: Any, backend: str, replicas: int, *, dry_run: bool, **terms: Any
) -> pb.ApplyMeshResponse:
    """Sets the number of replicas, whatever else of the backend is changed meanwhile.

    Reads the backend and writes it back with the new `num_replicas`; if its revision has changed in between, does so
    again. `terms` are passed to each rpc, such as its timeout.

    Raises:
        grpc.RpcError: the controller refuses, or the revision has changed in each of `ATTEMPTS` attempts.
    """
    for remaining in reversed(range(ATTEMPTS)):
        read = await stub.GetBackend(pb.GetBackendRequest(name=backend), **terms)
        before = str(read.backend.num_replicas) if read.backend.HasField("num_replicas") else UNSET
        # As the controller sent it: settings that only a newer version knows stay as they are.
        read.backend.num_replicas = replicas
        request = pb.ApplyBackendRequest(backend=read.backend, dry_run=dry_run, expected_revision=read.revision)
        try:
            response = await stub.ApplyBackend(request, **terms)
        except grpc.RpcError as error:
            if remaining and from_rpc_error(error).reason is Reason.REVISION_CONFLICT:
                continue
            raise
        subject, is_changed = f"backend/{backend}", before != str(replicas)
        applied = pb.ApplyMeshResponse(revision=response.revision)
        (applied.updated if is_changed else applied.unchanged).append(subject)
        applied.fields.add(subject=subject, field="num_replicas", before=before, after=str(replicas))
        return applied
    raise AssertionError("the last attempt returns or raises")
