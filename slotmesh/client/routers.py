"""The routers that a client knows: those given by the application, and those that a router has named.

Purpose: one channel for each router, shared by all endpoints; the policy of reconnecting; what a router describes; the
failures of rpcs to one, in the words of the client.
Invariants: the routers that one names replace those named before, so that former routers are not tried forever; those
given by the application stay. No response of a peer makes the list grow without bound.
Owner: the `Mesh`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.security.identity import Role
from slotmesh.status import from_rpc_error, is_unknown_there, to_exception
from slotmesh.streams.spliced_frames import cut
from slotmesh.transport.current_channel import CurrentChannel
from slotmesh.units import parse_host_port
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc, slot_service_pb2_grpc

MAX_LEARNED: Final = 64
"""Routers that one response can name."""

_OLD_CHANNEL_GRACE_S: Final = 5.0
"""The time left to unary calls on a connection that was given up."""

_PROBE: Final = health_pb2.HealthCheckRequest()
_PROBE_S: Final = 0.5

_State = grpc.ChannelConnectivity


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Reads `HOST:PORT`, `HOST:PORT,HOST:PORT`, or a sequence of `HOST:PORT`. Each once, in the order given.

    Raises:
        ValueError: there is no address, or one is not HOST:PORT.
    """
    try:
        each = addresses.split(",") if isinstance(addresses, str) else list(addresses)
        given = [str.strip(address) for address in each]
    except TypeError:
        raise ValueError(f"addresses must be HOST:PORT, or a sequence of HOST:PORT, got {addresses!r}") from None
    if not given:
        raise ValueError("expected the address of a router, as HOST:PORT, got none")
    for address in given:
        parse_host_port(address)
    return tuple(dict.fromkeys(given))


_Response = router_service_pb2.StreamCallsResponse
_STREAM_CALLS: Final = f"/{router_service_pb2.DESCRIPTOR.services_by_name['RouterService'].full_name}/StreamCalls"
_PAYLOADS: Final = (
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

    def __init__(self, addresses: Sequence[str], dialer: Dialer = PLAIN_TEXT) -> None:
        """`addresses`: given by the application. The first one that answers is used. `dialer` connects."""
        self.dialer = dialer
        self.given = tuple(addresses)
        self._learned: tuple[str, ...] = ()
        self._channels: dict[str, CurrentChannel] = {}
        self._stubs: dict[str, _Stubs] = {}

    def follow(self, addresses: Iterable[str]) -> None:
        """Replaces the given addresses by the routers that the mesh has now.

        An empty list changes nothing: the routers may be about to come back. May be called in any thread.
        """
        named = tuple(dict.fromkeys(address for address in addresses if _is_address(address)))
        if named:
            self.given = named

    def learn(self, addresses: Iterable[str]) -> None:
        """A router has named the others. Names that are no addresses are ignored."""
        named = tuple(dict.fromkeys(address for address in list(addresses)[:MAX_LEARNED] if _is_address(address)))
        if named:
            self._learned = named

    def others(self, address: str) -> list[str]:
        """Those to try if this one is lost, in random order, so that its clients spread."""
        others = [each for each in dict.fromkeys((*self.given, *self._learned)) if each != address]
        random.shuffle(others)
        return others

    def in_turn(self, last: str) -> list[str]:
        """All routers, in the order in which to try them, `last` (the one used last; empty: none) at the end."""
        if not last:
            return list(dict.fromkeys((*self.given, *self._learned)))
        return [*self.others(last), last]

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

    async def handshake_problem(self, address: str) -> str:
        """Why no connection to this router could be made, if certificates are the reason; else empty."""
        if self.is_connected(address):
            return ""
        try:
            health: Any = health_pb2_grpc.HealthStub(self._channel(address).get())
            await health.Check(_PROBE, timeout=_PROBE_S)
        except grpc.RpcError as error:
            return self.dialer.problem(error.details() or "", Role.ROUTER) or ""
        return ""

    def unreachable(self, patience_s: float, problem: str = "") -> Failure:
        """The failure of calls for which none was reached in this time."""
        why = f" ({problem})" if problem else ""
        return Failure(
            reason=Reason.ROUTER_LOST,
            message=f"no router answered at {', '.join(self.given)} within {patience_s:g} s{why}; start one there, or "
            "give connect() the address of one",
        )

    def renew(self, address: str) -> None:
        """Replaces a silent connection: the next stream uses a new one."""
        self._stubs.pop(address, None)
        channel = self._channels.get(address)
        if channel is not None:
            channel.renew(_OLD_CHANNEL_GRACE_S)

    async def aclose(self) -> None:
        """Closes all connections."""
        channels = list(self._channels.values())
        self._channels.clear()
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
            channel = self._channels[address] = CurrentChannel(self.dialer, address, Role.ROUTER)
        return channel


def _is_address(text: str) -> bool:
    try:
        parse_host_port(text)
    except ValueError:
        return False
    return True


FIRST_ATTEMPT_S: Final = 1.0
"""How long a router may take to answer if another one is known. Doubles from round to round."""


class Search:
    """Which router to try next, after which pause, and for how long. Pure: the caller reports the time spent.

    Invariants: the router that was used last is tried after the others. Another known one is tried immediately, unless
    streams end repeatedly before they have answered anything; between rounds through all of them there are growing
    pauses, with jitter. The search ends when no router could be reached for `patience_s`.
    Owner: the endpoint's `Connection`.
    """

    def __init__(self, routers: Routers, patience_s: float, last: str) -> None:
        """`last`: the router that was used last; empty if none was."""
        self._routers = routers
        self._patience_s = patience_s
        self._backoff = Backoff()
        self._left_s = patience_s
        self._attempt_s = FIRST_ATTEMPT_S
        self._strikes = 0
        """Consecutive streams that have answered nothing."""
        self._pause_s = 0.0
        self._candidates = deque(routers.in_turn(last))
        self._alone = len(self._candidates) == 1

    @property
    def is_over(self) -> bool:
        """Whether the patience is used up."""
        return self._left_s <= 0

    @property
    def is_alone(self) -> bool:
        """Whether the next router is the only one."""
        return self._alone

    @property
    def timeout_s(self) -> float:
        """The time limit of the next attempt."""
        return max(self._left_s if self._alone else min(self._left_s, self._attempt_s), 0.0)

    def spent(self, time_s: float) -> None:
        """Records time that passed without a router."""
        self._left_s -= time_s

    def take_pause_s(self, last: str) -> float:
        """The pause before the next attempt; 0 for none. A new round begins when one is over."""
        if not self._candidates:
            self._attempt_s *= 2
            self._pause_s = self._start_round(last)
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def take(self) -> str:
        """The router to try now."""
        return self._candidates.popleft()

    def lost(self, last: str, *, was_sound: bool) -> None:
        """The stream to `last` has ended. `was_sound`: it has answered something; others do not renew the patience."""
        if was_sound:
            self._left_s, self._attempt_s, self._strikes = self._patience_s, FIRST_ATTEMPT_S, 0
            self._backoff.reset()
        else:
            self._strikes += 1
        pause_s = self._start_round(last)
        self._pause_s = pause_s if self._alone or self._strikes > 1 else 0.0

    def _start_round(self, last: str) -> float:
        self._candidates = deque(self._routers.in_turn(last))
        self._alone = len(self._candidates) == 1
        return self._backoff.next_delay_s()


def refusal_of(error: grpc.RpcError, address: str, dialer: Dialer, service: str = "RouterService") -> Failure:
    """As `from_rpc_error`, for an rpc to a router, in the words of the client.

    If the server does not have the rpc, the message contains its address, which the transport's does not; if
    certificates are the reason, it contains the way out.
    """
    failure = from_rpc_error(error)
    if failure.reason is Reason.ROUTER_LOST:
        return replace(failure, message=dialer.explained(failure.message, Role.ROUTER))
    if failure.reason is not Reason.NOT_IMPLEMENTED or not is_unknown_there(error):
        return failure
    message = (
        f"what answers at {address} is not a router: it does not know slotmesh.v1.{service} ({failure.message});"
        " give connect() the address of one"
    )
    return replace(failure, message=message)


def is_cancelled_here() -> bool:
    """Whether the running task is being cancelled. Otherwise the rpc that it awaits was: the client was closed."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def credential_refusal(error: grpc.RpcError) -> Failure | None:
    """The failure of the calls of a stream that ended because the caller's credential is no longer valid; else None."""
    failure = from_rpc_error(error)
    return replace(failure, executed=Executed.UNKNOWN) if failure.reason is Reason.UNAUTHENTICATED else None


class DescribedEndpoints:
    """The endpoints that a router has described, and their methods: for `dir` and completion in shells.

    Queries the routers in turn, and caches the names. `dir` itself sends no query on an event loop, which would block.
    Owner: the `Mesh`.
    """

    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self._methods: dict[str, tuple[str, ...]] = {}

    def methods_of(self, endpoint: str) -> tuple[str, ...]:
        """The cached methods of an endpoint, sorted; empty if there are none."""
        return self._methods.get(endpoint, ())

    async def learn(self, endpoint: str = "", *, timeout_s: float) -> dict[str, tuple[str, ...]]:
        """Queries a router for all endpoints, or for one. `timeout_s`: for each router.

        Raises:
            SlotmeshError: no router has answered; the failure of the last one.
        """
        failure = Failure(reason=Reason.ROUTER_LOST, message="no router is known")
        request = router_service_pb2.DescribeEndpointsRequest(endpoint=endpoint)
        for address in self._routers.in_turn(""):
            try:
                response = await self._routers.stub(address).DescribeEndpoints(request, timeout=timeout_s)
            except grpc.RpcError as error:
                failure = refusal_of(error, address, self._routers.dialer)
                if failure.reason is Reason.NOT_IMPLEMENTED:
                    break
            else:
                found = {each.name: tuple(each.methods) for each in response.endpoints}
                if not endpoint:
                    self._methods.clear()
                self._methods.update(found)
                return found
        raise to_exception(failure, endpoint=endpoint)
