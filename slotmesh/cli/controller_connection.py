"""A command's connection to the controller, on which each change takes effect once even if its reply is lost.

Purpose: each changing request carries a random id. If the connection breaks before the reply, the request is sent once
more with the same id, to the controller that leads then. While a command waits for the effects of its change, its
queries move to the new leader, too (`hold_on`). A controller that stands by names the one that leads: requests that it
has refused are sent there (`follow`).
Invariants: no other refusal is repeated. One channel is open, and a second one only while the connection is replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import grpc
from google.protobuf.message_factory import GetMessageClass

from slotmesh.cli.connection import ConnectionBroke, Peer, is_lost, leader_among, standing_of
from slotmesh.cli.console import CommandFailed, Looks, say
from slotmesh.cli.controller_view import ControllerStatus
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.ids import new_id
from slotmesh.status import from_rpc_error
from slotmesh.transport.current_channel import LEADER_FACT
from slotmesh.v1 import controller_service_pb2
from slotmesh.v1.controller_service_pb2 import AdoptStateRequest
from slotmesh.v1.info_service_pb2 import ControllerStanding

STORED_ON_HOLD: Final = (
    "slotmesh: the controller is on hold: the change is stored, and takes no effect before an operator ends the hold"
    " (`slotmesh status` shows how)"
)
BACK_WITHIN_S: Final = 10.0
"""The time limit after a lost reply for the controller to respond again, or for another one to lead."""
_LOOK_EVERY_S: Final = 0.1
_AUTHOR: Final = (("slotmesh-client", "slotmesh"),)
"""Metadata of changes: the author that the history records."""
RPCS: Final = {
    rpc.input_type.full_name: rpc
    for rpc in controller_service_pb2.DESCRIPTOR.services_by_name["ControllerService"].methods
}
"""The rpcs of controllers by the type of the request. Those whose requests have a `request_id` change state."""


def _named_leader(error: grpc.RpcError) -> str:
    """The leader's address, if a controller that stands by has refused the request; otherwise empty."""
    return from_rpc_error(error).metadata.get(LEADER_FACT, "")


class ControllerConnection:
    """A channel to the leading controller; replaced by one to a new leader after a lost reply."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._opened = AsyncExitStack()
        """Closes the channel."""
        self._known: ControllerStatus | None = None
        """The status that the controller reported first on this channel."""
        self._holds_on_s = 0.0
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

    def call(self, request: Any, **terms: Any) -> Any:
        """Begins the rpc that has this type of request, on the present channel: to be awaited, or a stream."""
        rpc = RPCS[request.DESCRIPTOR.full_name]
        begin = self.channel.unary_stream if rpc.server_streaming else self.channel.unary_unary
        return begin(
            f"/{rpc.containing_service.full_name}/{rpc.name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=GetMessageClass(rpc.output_type).FromString,
        )(request, **terms)

    async def send(self, request: Any, timeout_s: float) -> Any:
        """The response. Raises as a stub does. A change is repeated after a lost reply, if that is safe."""
        if "request_id" in request.DESCRIPTOR.fields_by_name:
            return await self._change(request, timeout=timeout_s, metadata=_AUTHOR)
        while True:
            try:
                return await self.call(request, timeout=timeout_s)
            except grpc.RpcError as error:
                if await self.follow(_named_leader(error)):
                    continue
                leads_no_more = from_rpc_error(error).reason is Reason.NOT_LEADER
                if not ((is_lost(error) or leads_no_more) and await self.is_back()):
                    raise

    async def _change(self, request: Any, **terms: Any) -> Any:
        request.request_id = new_id()
        has_no_hold = isinstance(request, AdoptStateRequest) or getattr(request, "validate_only", False)
        for is_last in (False, True):
            standing = await self.known_standing()
            try:
                response = await self.call(request, **terms)
            except grpc.RpcError as error:
                if is_last:
                    raise
                if not (await self.follow(_named_leader(error)) or (is_lost(error) and await self.reconnect())):
                    raise
            else:
                if standing.is_on_hold and not has_no_hold:
                    say(STORED_ON_HOLD, err=True)
                return response
        raise AssertionError("the last attempt returns or raises")

    async def known_standing(self) -> ControllerStatus:
        """The status that the controller reported first on this channel."""
        if self._known is None:
            try:
                self._known = await standing_of(self.channel, self.peer)
            except (CommandFailed, SlotmeshError):
                # The response to the request itself explains the failure.
                self._known = ControllerStatus(self.peer.address, ControllerStanding())
        return self._known

    @property
    def is_on_hold(self) -> bool:
        """Whether the controller last reported that it reconciles nothing: changes are stored, without effect."""
        return self._known is not None and self._known.is_on_hold

    def hold_on(self, within_s: float) -> None:
        """From now on, repeats a query if its connection breaks or its controller resigns, and one leads in time."""
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

    async def follow(self, leader: str) -> bool:
        """Connects to the leader that a refusal names, once. Returns False if it does not answer, or does not lead.

        At that address this machine may reach a controller of another mesh: it has to list the one that has refused.
        """
        if not leader or leader in self._addresses:
            return False
        peer, standby = Peer("controller", leader), (await self.known_standing()).advertised
        try:
            async with peer.connect() as channel:
                role = (await standing_of(channel, peer)).role
                if not (role.leads and standby and standby in role.standby_addresses):
                    return False
        except (CommandFailed, SlotmeshError):
            return False
        self._addresses = (*self._addresses, leader)
        await self._connect()
        return True

    async def reconnect(self, within_s: float = BACK_WITHIN_S) -> bool:
        """Connects to the current leader. Returns False if there is none within `within_s`."""
        async for is_late in Looks(_LOOK_EVERY_S, within_s):
            if is_late:
                break
            with suppress(CommandFailed, SlotmeshError):
                await self._connect()
                standing = await standing_of(self.channel, self.peer)
                if standing.role.leads:
                    self._known = standing
                    return True
        return False

    async def _connect(self) -> None:
        peer = Peer("controller", await leader_among(self._addresses))
        async with AsyncExitStack() as opening:
            channel = await opening.enter_async_context(peer.connect())
            before, self._opened = self._opened, opening.pop_all()
        self.channel, self.peer, self._known = channel, peer, None
        await before.aclose()
