"""Where a request comes from: what trusted proxies say, and nothing that a client says of itself."""

from __future__ import annotations

import pytest

from ingress_service.config import IngressSettings
from ingress_service.core.peers import ForwardedHeader, PeerAddresses, address_of, networks_of

XFF, FORWARDED = ForwardedHeader.X_FORWARDED_FOR, ForwardedHeader.FORWARDED
PROXIES = networks_of("10.0.0.0/8, fd00::/8, 127.0.0.1")


@pytest.mark.parametrize(
    ("host", "said", "address"),
    [
        ("10.0.0.1", b"", "10.0.0.1"),
        ("10.0.0.1", b"198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", b"192.0.2.1, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", b"198.51.100.7, 10.9.9.9, 127.0.0.1", "198.51.100.7"),
        ("10.0.0.1", b"10.9.9.9", "10.9.9.9"),
        ("10.0.0.1", b"198.51.100.7, nonsense", "10.0.0.1"),
        ("10.0.0.1", b"198.51.100.7:8080", "198.51.100.7"),
        ("10.0.0.1", b"[2001:db8::1]:8080", "2001:db8::/64"),
        ("::ffff:10.0.0.1", b"198.51.100.7", "198.51.100.7"),
        ("fd00::1", b"2001:db8::1", "2001:db8::/64"),
        ("203.0.113.9", b"198.51.100.7", "203.0.113.9"),
        ("", b"198.51.100.7", ""),
        ("10.0.0.1", b"198.51.100.7" + b",10.0.0.1" * 100, "10.0.0.1"),
    ],
)
def test_x_forwarded_for_is_read_from_the_right(host: str, said: bytes, address: str) -> None:
    assert PeerAddresses(PROXIES, XFF).of(host, said) == address


@pytest.mark.parametrize(
    ("said", "address"),
    [
        (b"for=198.51.100.7", "198.51.100.7"),
        (b'for=192.0.2.1, For="198.51.100.7:99"; proto=https;by=10.0.0.1', "198.51.100.7"),
        (b'for="[2001:db8::1]:99", for=10.9.9.9', "2001:db8::/64"),
        (b"for=198.51.100.7, by=10.0.0.2", "10.0.0.1"),
        (b"for=_hidden", "10.0.0.1"),
        (b"198.51.100.7", "10.0.0.1"),
    ],
)
def test_forwarded_is_read_from_the_right(said: bytes, address: str) -> None:
    assert PeerAddresses(PROXIES, FORWARDED).of("10.0.0.1", said) == address


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:1%eth0") != address_of("2001:db8:0:1::1")
    assert address_of("::ffff:192.0.2.1") == address_of("192.0.2.1")


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match="write addresses or networks"):
        IngressSettings(http_trusted_proxies="10.0.0.0/8, proxy.internal")
