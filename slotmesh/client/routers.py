"""The routers that a client knows: those given by the application, and those that a router has named.

Purpose: one channel for each router, shared by all endpoints; the order in which they are used; the failures of rpcs to
one, in the words of the client.
Invariants: the routers that one names replace those named before, so that former routers are not tried forever; those
given by the application stay, or are what their name is resolved to. No response of a peer makes the list grow without
bound. Of a list, the first router that answers is used; of those of a name, or of a handler's mesh, each in turn. A
router that is known no more gets nothing new, and its channel is closed when it has lost its connection.
Owner: the `Mesh`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

import grpc

from slotmesh.client.diagnoses import Diagnoses
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.security.handshakes import ConnectionProblem
from slotmesh.security.identity import Role
from slotmesh.status import from_rpc_error, has_details, is_unknown_there
from slotmesh.streams.spliced_frames import Paths, cut
from slotmesh.transport.current_channel import CurrentChannel
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.units import is_host_port
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc, slot_service_pb2_grpc

MAX_LEARNED: Final = 64
"""Routers that one response can name."""

MAX_SPREAD: Final = 8
"""Routers of a name that one client uses for rpcs of their own."""

MAX_SHOWN: Final = 8
"""Addresses in a message."""

LEAVING_S: Final = 30.0
"""How long a router that leaves is avoided: longer than it usually takes to end."""

_LAST_RPCS_S: Final = 60.0
"""The time left to rpcs on a connection that its router has begun to end."""

_OLD_CHANNEL_GRACE_S: Final = 5.0
"""The time left to unary calls on a connection that was given up."""

_State = grpc.ChannelConnectivity


_Response = router_service_pb2.StreamCallsResponse
_STREAM_CALLS: Final = f"/{router_service_pb2.DESCRIPTOR.services_by_name['RouterService'].full_name}/StreamCalls"
_PAYLOADS: Final[Paths] = (
    (
        _Response.RESULTS_FIELD_NUMBER,
        call_pb2.ResultFrame.BATCHES_FIELD_NUMBER,
        call_pb2.ResultBatch.PAYLOADS_FIELD_NUMBER,
    ),
    (_Response.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER),
)


def _read_response(raw: bytes) -> Any:
    """A frame of a router's stream; a `CutFrame` if it has large payloads."""
    return cut(raw, _Response.FromString, _PAYLOADS)


class _Stubs(NamedTuple):
    """The stubs of one channel."""

    channel: grpc.aio.Channel
    router: router_service_pb2_grpc.RouterServiceStub
    slots: slot_service_pb2_grpc.SlotServiceStub


class Routers:
    """Addresses and channels."""

    def __init__(
        self, addresses: ServerAddresses | Sequence[str], dialer: Dialer = PLAIN_TEXT, *, is_spread: bool = False
    ) -> None:
        """`addresses`: given by the application, which may share and has to close them. `dialer` connects.

        `is_spread`: any of a list may be used, too.
        """
        self.dialer = dialer
        self._is_spread = is_spread
        self._diagnoses = Diagnoses(dialer)
        self._servers = ServerAddresses.of(addresses)
        self._stop_listening = self._servers.listen(self._drop_unknown)
        self._followed: tuple[str, ...] = ()
        self._learned: tuple[str, ...] = ()
        self._leaving: dict[str, float] = {}
        """Routers that have said that they leave, and how long that counts."""
        self._channels: dict[str, CurrentChannel] = {}
        self._stubs: dict[str, _Stubs] = {}
        self._dropped: list[CurrentChannel] = []
        """To routers that are known no more; each is closed when its last rpc has ended."""
        self._seed = object()
        """Makes the order of this client one of its own."""
        self._ranked: tuple[tuple[str, ...], list[str]] = (), []
        """Those that are given, and in the order of this client."""
        self.was_reached = False
        """Whether there has been a connection to a router."""
        self.is_closed = False
        self._searches, self._picks = count(), count()
        """Turns of streams, and of rpcs of their own: were they one, two routers could get a kind each."""

    @property
    def given(self) -> tuple[str, ...]:
        """Those of the application, in order. Empty while its names have never been resolved."""
        return self._followed or self._servers.known

    @property
    def is_spread(self) -> bool:
        """Whether any of them may be used, as of those found by name. Otherwise the first one that answers is."""
        return self._is_spread or self._servers.are_resolved

    async def found(self, timeout_s: float | None) -> bool:
        """Whether one is known. Waits for the first addresses of names, at most `timeout_s`."""
        return bool(self.given or await self._servers.first(timeout_s))

    def look_again(self) -> None:
        """No known router answers: names are resolved again, soon."""
        self._servers.request()

    def follow(self, addresses: Iterable[str]) -> None:
        """Replaces the given addresses by the routers that the mesh has now.

        An empty list changes nothing: the routers may be about to come back. May be called in any thread.
        """
        named = tuple(dict.fromkeys(address for address in addresses if is_host_port(address)))
        if named:
            self._followed = named

    def learn(self, addresses: Iterable[str]) -> None:
        """A router has answered, and named the others. Names that are no addresses are ignored."""
        self.was_reached = True
        named = tuple(dict.fromkeys(address for address in list(addresses)[:MAX_LEARNED] if is_host_port(address)))
        if named:
            self._learned = named

    def leaves(self, address: str, alternates: Iterable[str]) -> None:
        """The router ends: it gets nothing new for a while, unless it is the only one."""
        self._leaving[address] = asyncio.get_running_loop().time() + LEAVING_S
        self.learn(alternates)

    def others(self, address: str) -> list[str]:
        """Those to try if this one is lost, in random order, so that its clients spread.

        Those of names go before those that routers have named, which the name may leave out on purpose.
        """
        given = self.given
        others = [each for each in dict.fromkeys((*given, *self._learned)) if each != address]
        random.shuffle(others)
        return sorted(others, key=lambda each: (self._is_leaving(each), self.is_spread and each not in given))

    def in_turn(self, last: str) -> list[str]:
        """All routers, in the order in which to try them, `last` (the one used last; empty: none) at the end."""
        if last:
            return [*self.others(last), last]
        order = self._order(len(self.given), next(self._searches)) if self.is_spread else list(self.given)
        return list(dict.fromkeys((*order, *self._learned)))

    def pick(self, last: str) -> str:
        """The router for one more rpc of its own: `last`, or of those found by name the next connected one.

        Uses `MAX_SPREAD` of them, and connects these. Empty: there is none yet.
        """
        if not self.is_spread:
            return last
        few, connected = self._order(MAX_SPREAD, next(self._picks)), []
        for address in few:
            if self._channel(address).connects():
                connected.append(address)
            else:
                self._leaving.pop(address, None)  # it has ended; the next one there does not leave
        return connected[0] if connected else last if last in few else ""

    def _order(self, most: int, turn: int) -> list[str]:
        """Those of names, in an order of this client's own that begins one further each turn, leaving ones last.

        It hardly changes with the list: with another router, a few of the used ones are replaced by it.
        """
        if self._ranked[0] is not (given := self.given):
            self._ranked = given, sorted(given, key=lambda address: hash((self._seed, address)))
        few = self._ranked[1][:most]
        at = turn % len(few) if few else 0
        return sorted(few[at:] + few[:at], key=self._is_leaving)

    def _is_leaving(self, address: str) -> bool:
        until = self._leaving.get(address)
        if until is not None and until <= asyncio.get_running_loop().time():
            del self._leaving[address]
            until = None
        return until is not None

    def stub(self, address: str) -> router_service_pb2_grpc.RouterServiceStub:
        """The stub of this router. Needs a running loop, to which the channel then belongs. Requested for each rpc."""
        return self._stubs_of(address).router

    def slot_stub(self, address: str) -> slot_service_pb2_grpc.SlotServiceStub:
        """As `stub`, for its slots."""
        return self._stubs_of(address).slots

    def channel(self, address: str) -> grpc.aio.Channel:
        """As `stub`, for rpcs of other services. It stays open."""
        return self._channel(address).get()

    def is_connected(self, address: str) -> bool:
        """Whether there is a connection to this router, according to the transport."""
        channel = self._channels.get(address)
        return channel is not None and channel.is_connected

    def confirm_connection(self, address: str) -> bool:
        """Returns whether there is a connection to this router, and records it in `was_reached` if so."""
        is_connected = self.is_connected(address)
        self.was_reached = self.was_reached or is_connected
        return is_connected

    async def wait_for_connection(self, address: str, *, patiently: bool) -> None:
        """Returns when there is a connection to this router.

        Raises:
            ConnectionError: it failed. `patiently`: only raised when the client is closed.
        """
        channel = self._channel(address).get()
        hopeless = {_State.SHUTDOWN} if patiently else {_State.SHUTDOWN, _State.TRANSIENT_FAILURE}
        while (state := channel.get_state(try_to_connect=True)) is not _State.READY:
            if state in hopeless:
                raise ConnectionError(f"no connection to {address}")
            await channel.wait_for_state_change(state)
        self.was_reached = True

    def has_failed(self, address: str) -> bool:
        """Whether the last attempt to connect to this router has failed, and none is under way."""
        channel = self._channels.get(address)
        return channel is not None and channel.has_failed

    async def problem(self, address: str) -> ConnectionProblem | None:
        """Finds out why there is no connection to this router; None if that is not known.

        None, too, if there is one, which `was_reached` then records, or if the client has no channel to it any more.
        """
        channel = None if self.is_closed else self._channels.get(address)
        if channel is None or self.confirm_connection(address):
            return None
        return await self._diagnoses.of(address, channel.get())

    def unreachable(self, patience_s: float, why: str = "", *, problem: ConnectionProblem | None = None) -> Failure:
        """The failure of calls for which none was reached in this time. Of the causes `problem` has the way out."""
        if not self.given:
            message = f"no router was found within {patience_s:g} s: {self._servers.problem}"
            return Failure(reason=Reason.ROUTER_LOST, message=message, executed=Executed.NO)
        where = ", ".join(self.given[:MAX_SHOWN]) + (", …" if len(self.given) > MAX_SHOWN else "")
        if self._servers.are_resolved:
            where = f"{self._servers.text} ({where})"
        why = f": {problem.text}" if problem else f"{why and f' ({why})'}; start one there, or {_GIVE_ONE}"
        message = f"no router answered at {where} within {patience_s:g} s{why}"
        return Failure(reason=Reason.ROUTER_LOST, message=message)

    def renew(self, address: str) -> None:
        """Replaces a silent connection: the next stream uses a new one."""
        self._stubs.pop(address, None)
        channel = self._channels.get(address)
        if channel is not None:
            channel.renew(_OLD_CHANNEL_GRACE_S)

    async def aclose(self) -> None:
        """Closes all connections."""
        self.is_closed = True
        self._stop_listening()
        await self._diagnoses.aclose()
        channels = [*self._channels.values(), *self._dropped]
        self._channels.clear()
        self._dropped.clear()
        self._stubs.clear()
        for channel in channels:
            await channel.aclose()

    def _stubs_of(self, address: str) -> _Stubs:
        channel = self._channel(address).get()
        stubs = self._stubs.get(address)
        if stubs is None or stubs.channel is not channel:
            router: Any = router_service_pb2_grpc.RouterServiceStub(channel)
            router.StreamCalls = channel.stream_stream(
                _STREAM_CALLS, router_service_pb2.StreamCallsRequest.SerializeToString, _read_response
            )
            stubs = self._stubs[address] = _Stubs(channel, router, slot_service_pb2_grpc.SlotServiceStub(channel))
        return stubs

    def _channel(self, address: str) -> CurrentChannel:
        channel = self._channels.get(address)
        if channel is None:
            self._drop_unknown()
            host = self._servers.host_of(address)
            channel = self._channels[address] = CurrentChannel(self.dialer, address, Role.ROUTER, host=host)
        return channel

    def _drop_unknown(self) -> None:
        """Closes the channels to routers that are neither given nor named any more, and are not connected.

        The last rpcs of a connection that its router ends go on.
        """
        known = {*self.given, *self._learned}
        self._leaving = {address: until for address, until in self._leaving.items() if address in known}
        self._dropped = [channel for channel in self._dropped if channel.is_open]
        for address in [it for it, channel in self._channels.items() if it not in known and not channel.is_connected]:
            self._stubs.pop(address, None)
            channel = self._channels.pop(address)
            channel.renew(_LAST_RPCS_S)
            self._dropped.append(channel)


_GIVE_ONE: Final = "give connect() the address of one"
_UNSENT: Final = "failed to connect to all addresses"
"""The transport's words for an rpc that no connection was found for."""


def refusal_of(error: grpc.RpcError, address: str, dialer: Dialer, service: str = "RouterService") -> Failure:
    """As `from_rpc_error`, for an rpc to a router, in the words of the client.

    If the server does not have the rpc, the message contains its address, which the transport's does not; if
    certificates are the reason, it contains the way out. CANCELLED without details is of a server that stops, or of a
    proxy: gRPC ends by it what has arrived and was not taken in, and raises CancelledError for rpcs that end here.
    """
    failure = from_rpc_error(error)
    if failure.reason is Reason.CANCELLED and not has_details(error):
        message = f"the router ended the rpc: {failure.message}"
        failure = replace(failure, reason=Reason.ROUTER_LOST, message=message, code=None)
    if failure.reason is Reason.ROUTER_LOST:
        executed = Executed.NO if failure.message.startswith(_UNSENT) else failure.executed
        problem = dialer.problem(failure.message, Role.ROUTER)
        message = failure.message if problem is None else unconnected(address, problem)
        return replace(failure, executed=executed, message=message)
    if failure.reason is not Reason.NOT_IMPLEMENTED or not is_unknown_there(error):
        return failure
    message = (
        f"what answers at {address} is not a router: it does not know slotmesh.v1.{service} ({failure.message});"
        f" {_GIVE_ONE}"
    )
    return replace(failure, message=message)


MAY_HAVE_RUN: Final = "; it may have been executed"
"""How messages about calls without an outcome end; with values of the call in hand, more is known."""


def end_of_call(error: grpc.RpcError, address: str, dialer: Dialer) -> Failure:
    """As `refusal_of`, for the rpc of a call. If its connection broke after it was sent, the message states that."""
    failure = refusal_of(error, address, dialer)
    is_lost = failure.reason is Reason.ROUTER_LOST and failure.executed is Executed.UNKNOWN
    return lost_call(failure.message, address) if is_lost and not has_details(error) else failure


def lost_call(problem: str, address: str) -> Failure:
    """The failure of the rpc of a call whose connection broke after it was sent."""
    return Failure(
        reason=Reason.ROUTER_LOST,
        message=f"the connection to the router at {address} was lost before it had reported the outcome ({problem})"
        f"{MAY_HAVE_RUN}",
        executed=Executed.UNKNOWN,
    )


CLOSED: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed")


def unconnected(address: str, problem: ConnectionProblem) -> str:
    """The message about a router that is not reached."""
    return f"no connection to the router at {address}: {problem.text}"


def is_cancelled_here() -> bool:
    """Whether the running task is being cancelled. Otherwise the rpc that it awaits was: the client was closed."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def credential_refusal(error: grpc.RpcError) -> Failure | None:
    """The failure of the calls of a stream that ended because the caller's credential is no longer valid; else None."""
    failure = from_rpc_error(error)
    return replace(failure, executed=Executed.UNKNOWN) if failure.reason is Reason.UNAUTHENTICATED else None
