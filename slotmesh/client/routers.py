"""The routers that a client knows: those it was given, and those it has heard of.

Purpose: one channel a router, shared by all endpoints; who is asked next where one is lost.
Invariants: what a router says about the others replaces what was said before, so that routers of long ago are not asked
for ever; what the application has given stays. No answer of a peer makes the list grow without bound.
Owner: the `Mesh`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.runtime.backoff import Backoff
from slotmesh.runtime.channels import PLAIN_TEXT, Dialer
from slotmesh.security.identity import Role
from slotmesh.transport.current_channel import CurrentChannel
from slotmesh.units import parse_host_port
from slotmesh.v1 import router_service_pb2_grpc, slot_service_pb2_grpc

MAX_LEARNED: Final = 64
"""Routers that one answer can name."""

_OLD_CHANNEL_GRACE_S: Final = 5.0
"""What unary calls on a connection that was given up have left."""

_PROBE: Final = health_pb2.HealthCheckRequest()
_PROBE_S: Final = 0.5

_State = grpc.ChannelConnectivity


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Reads `HOST:PORT`, `HOST:PORT,HOST:PORT`, or a sequence of `HOST:PORT`. Each once, in the order given.

    Raises:
        ValueError: there is none, or one is not HOST:PORT.
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


class _Stubs(NamedTuple):
    """Of one channel."""

    channel: grpc.aio.Channel
    router: router_service_pb2_grpc.RouterServiceStub
    slots: slot_service_pb2_grpc.SlotServiceStub


class Routers:
    """Addresses and channels."""

    def __init__(self, addresses: Sequence[str], dialer: Dialer = PLAIN_TEXT) -> None:
        """`addresses`: what the application has given. The first one that answers is used. `dialer` connects."""
        self.dialer = dialer
        self.given = tuple(addresses)
        self._learned: tuple[str, ...] = ()
        self._channels: dict[str, CurrentChannel] = {}
        self._stubs: dict[str, _Stubs] = {}

    def follow(self, addresses: Iterable[str]) -> None:
        """These are the routers of the mesh, as who knows them says: in place of what was given before.

        None changes nothing: they may be about to come back. May be called in any thread.
        """
        named = tuple(dict.fromkeys(address for address in addresses if _is_address(address)))
        if named:
            self.given = named

    def learn(self, addresses: Iterable[str]) -> None:
        """A router has named the others. Names that are no addresses are passed over."""
        named = tuple(dict.fromkeys(address for address in list(addresses)[:MAX_LEARNED] if _is_address(address)))
        if named:
            self._learned = named

    def others(self, address: str) -> list[str]:
        """Those to ask where this one is lost, in an order of chance: not all of its clients go to the same."""
        others = [each for each in dict.fromkeys((*self.given, *self._learned)) if each != address]
        random.shuffle(others)
        return others

    def in_turn(self, last: str) -> list[str]:
        """All, in the order in which to ask them: `last`, the one that was used last, at the end. Empty: none was."""
        if not last:
            return list(dict.fromkeys((*self.given, *self._learned)))
        return [*self.others(last), last]

    def stub(self, address: str) -> router_service_pb2_grpc.RouterServiceStub:
        """To call this router. Needs a running loop, to which the channel belongs from then on. Asked for each rpc."""
        return self._stubs_of(address).router

    def slot_stub(self, address: str) -> slot_service_pb2_grpc.SlotServiceStub:
        """As `stub`, of its slots."""
        return self._stubs_of(address).slots

    def channel(self, address: str) -> grpc.aio.Channel:
        """As `stub`, for rpcs of other services. It stays open."""
        return self._channel(address).get()

    def is_connected(self, address: str) -> bool:
        """Whether there is a connection to this router, as far as the transport knows."""
        channel = self._channels.get(address)
        return channel is not None and channel.is_connected

    async def wait_for_connection(self, address: str, *, patiently: bool) -> None:
        """Returns when there is a connection to this router.

        Raises:
            ConnectionError: there is none to be had now. `patiently`: only when the client was closed.
        """
        channel = self._channel(address).get()
        hopeless = {_State.SHUTDOWN} if patiently else {_State.SHUTDOWN, _State.TRANSIENT_FAILURE}
        while (state := channel.get_state(try_to_connect=True)) is not _State.READY:
            if state in hopeless:
                raise ConnectionError(f"no connection to {address}")
            await channel.wait_for_state_change(state)

    async def handshake_problem(self, address: str) -> str:
        """Why no connection to this router could be made, where that is for certificates; else empty."""
        if self.is_connected(address):
            return ""
        try:
            health: Any = health_pb2_grpc.HealthStub(self._channel(address).get())
            await health.Check(_PROBE, timeout=_PROBE_S)
        except grpc.RpcError as error:
            return self.dialer.problem(error.details() or "", Role.ROUTER) or ""
        return ""

    def renew(self, address: str) -> None:
        """The connection to this router is silent: the next stream takes a new one."""
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
            router = router_service_pb2_grpc.RouterServiceStub(channel)
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


# Which router to ask next, after which pause, and for how long.
#
# Purpose: the policy of reconnecting. No I/O: the connection tells what took how long.
# Invariants: the router that was used last is asked when no other one answers. Another one that is known is asked at
# once, unless streams end again and again before they have answered anything; rounds through all of them have growing
# pauses, with jitter. It ends when no router could be reached for `patience_s`.
# Owner: the endpoint's `Connection`.

FIRST_ATTEMPT_S: Final = 1.0
"""What a router may take to answer where another one is known. Doubles from round to round."""


class Search:
    """From one reachable router to the next."""

    def __init__(self, routers: Routers, patience_s: float, last: str) -> None:
        """`last`: the router that was used last; empty where none was."""
        self._routers = routers
        self._patience_s = patience_s
        self._backoff = Backoff()
        self._left_s = patience_s
        self._attempt_s = FIRST_ATTEMPT_S
        self._strikes = 0
        """Streams in a row that were of no use."""
        self._pause_s = 0.0
        self._candidates = deque(routers.in_turn(last))
        self._alone = len(self._candidates) == 1

    @property
    def is_over(self) -> bool:
        """Whether the patience is at its end."""
        return self._left_s <= 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other router to ask than the next one."""
        return self._alone

    @property
    def timeout_s(self) -> float:
        """What the next attempt may take."""
        return max(self._left_s if self._alone else min(self._left_s, self._attempt_s), 0.0)

    def spent(self, time_s: float) -> None:
        """That much time went by without a router."""
        self._left_s -= time_s

    def take_pause_s(self, last: str) -> float:
        """What to wait before the next attempt; 0 where nothing. After a round in vain another one begins."""
        if not self._candidates:
            self._attempt_s *= 2
            self._pause_s = self._start_round(last)
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def take(self) -> str:
        """The router to ask now."""
        return self._candidates.popleft()

    def lost(self, last: str, *, was_sound: bool) -> None:
        """The stream to `last` has ended. `was_sound`: it was of use; one that was not gives no new patience."""
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
