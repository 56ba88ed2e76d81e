"""The address that a request comes from, and bounds by it: of connections, and of requests in flight. Pure.

Invariants: the address of a header counts only if each proxy on the way is one that the settings name; the header is
read from the right, and what is no address counts as that of the proxy that has sent it. Addresses of one IPv6 network
of 64 bits are one, as one machine has all of them. The bounds are `FairBound`s.
Owner: the app; connections, the front and the sockets take and give.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from ingress_service.core.problems import RequestRefusal, refusal
from slotmesh.calls.fair_shares import FairBound, Over
from slotmesh.errors import Reason

AddressRange = IPv4Network | IPv6Network
MAX_HOPS: Final = 32
"""Addresses of a header that are looked at, from the right."""
_IPV6_BITS: Final = 64
_UNKNOWN: Final = ""


class ForwardedHeader(StrEnum):
    """Which header trusted proxies set."""

    X_FORWARDED_FOR = "x-forwarded-for"
    FORWARDED = "forwarded"


def networks_of(text: str) -> tuple[AddressRange, ...]:
    """Of addresses and networks with commas between them. Raises ValueError."""
    return tuple(ip_network(each.strip(), strict=False) for each in text.split(",") if each.strip())


class PeerAddresses:
    """The address that counts for a request: that of the connection, or the one that a trusted proxy states."""

    def __init__(
        self, proxies: tuple[AddressRange, ...] = (), header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR
    ) -> None:
        self._proxies = proxies
        self.header = header
        self._read = _of_list if header is ForwardedHeader.X_FORWARDED_FOR else _of_forwarded

    def is_proxy(self, host: str) -> bool:
        """Whether the settings name it. `host`: the address of a connection's other end."""
        if not self._proxies or (address := _parsed(host)) is None:
            return False
        return any(address.version == it.version and address in it for it in self._proxies)

    def of(self, host: str, value: bytes) -> str:
        """The address that counts for a request. `value`: the value of the header, all its lines together."""
        if value and self.is_proxy(host):
            for each in self._read(value):
                if _parsed(each) is None:
                    break
                host = each
                if not self.is_proxy(host):
                    break
        return address_of(host)


@lru_cache(maxsize=4096)
def address_of(host: str) -> str:
    """What stands for an address where requests are counted; what is none, as of a socket of Unix, is one."""
    if (address := _parsed(host)) is None:
        return _UNKNOWN
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, _IPV6_BITS), strict=False))
    return str(address)


@lru_cache(maxsize=4096)
def _parsed(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _of_list(value: bytes) -> list[str]:
    """X-Forwarded-For, the last address first."""
    return [_host(each) for each in value.decode("latin-1").rsplit(",", MAX_HOPS)[-MAX_HOPS:]][::-1]


def _of_forwarded(value: bytes) -> list[str]:
    """`for=` of each element of Forwarded (RFC 7239), the last first; elements without it are skipped."""
    found: list[str] = []
    for element in value.decode("latin-1").rsplit(",", MAX_HOPS)[-MAX_HOPS:]:
        pairs = (it.partition("=") for it in element.split(";"))
        named = [value for name, _, value in pairs if name.strip().lower() == "for"]
        found.append(_host(named[0].strip().strip('"')) if named else _UNKNOWN)
    return found[::-1]


def _host(text: str) -> str:
    """Without a port and brackets."""
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


FLOOR: Final = 16
"""An address with no more connections than these finds the reserve."""


class ConnectionBound:
    """Of one ingress."""

    def __init__(self, most: int, peers: PeerAddresses) -> None:
        self._bound: FairBound[str] = FairBound.within(most, FLOOR)
        self._peers = peers

    def take(self, host: str) -> bool:
        """Whether there may be one more from this address."""
        address = address_of(host)
        if self._bound.over(address, 1, has_share=not self._peers.is_proxy(host)) is not None:
            return False
        self._bound.take(address, 1)
        return True

    def give(self, host: str) -> None:
        """One has ended."""
        self._bound.give(address_of(host), 1)


Requester: TypeAlias = int | str
"""The requester: the number of the caller whose token a router has taken, or else the address it is from."""
BUSY_RETRY_S: Final = 1.0
REQUESTS_FLOOR: Final = 64
"""A requester with no more requests than these finds the reserve."""


class RequestBound:
    """Of one ingress."""

    def __init__(self, most: int) -> None:
        self._bound: FairBound[Requester] = FairBound.within(most, REQUESTS_FLOOR)

    @contextmanager
    def taken(self, who: Requester) -> Iterator[None]:
        """One more, for as long as the block lasts. Raises RequestRefusal."""
        if (over := self._bound.over(who, 1)) is not None:
            raise _refused(over)
        self._bound.take(who, 1)
        try:
            yield
        finally:
            self._bound.give(who, 1)


def _refused(over: Over) -> RequestRefusal:
    whose = "of this caller or address " if over is Over.SHARE else ""
    text = f"too many requests {whose}are in flight (--max-requests)"
    return refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
