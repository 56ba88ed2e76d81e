"""Durations, sizes and addresses as people write them: `250ms`, `4MiB`, `HOST:PORT`. Pure.

Invariants: a number without a unit is refused, except 0; what `format_*` writes, `parse_*` reads back.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from types import MappingProxyType

MICROSECONDS_OF: Mapping[str, int] = MappingProxyType(
    {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
)
"""Units of a duration."""

BYTES_OF: Mapping[str, int] = MappingProxyType(
    {
        "B": 1,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    }
)
"""Units of a size."""

MAX_DURATION_S = 315_576_000_000
"""The longest `google.protobuf.Duration`: 10,000 years."""

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
_MAX_PORT = 65_535


def parse_names(text: str) -> tuple[str, ...]:
    """Reads names with commas between them, each once."""
    return tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))


def parse_duration(text: str) -> timedelta:
    """Reads `250ms`, `1.5s`, `2m`, `1h`. To the microsecond.

    Raises:
        ValueError: there is no unit, an unknown one, or a sign; or it is too long.
    """
    try:
        return timedelta(microseconds=_quantity(text, MICROSECONDS_OF))
    except OverflowError:
        raise ValueError(f"the duration {text!r} is too long") from None
    except ValueError:
        raise ValueError(f"expected a duration such as 250ms, 30s or 2m, got {text!r}") from None


def format_duration(duration: timedelta) -> str:
    """Writes a duration in the largest unit that keeps it whole."""
    return _format(duration // timedelta(microseconds=1), MICROSECONDS_OF, zero="0s")


def parse_size(text: str) -> int:
    """Reads `64KiB`, `4MiB`, `1.5GB` as bytes.

    Raises:
        ValueError: there is no unit, an unknown one, or a sign.
    """
    try:
        return _quantity(text, BYTES_OF)
    except ValueError:
        raise ValueError(f"expected a size such as 64KiB or 4MiB, got {text!r}") from None


def format_size(size: int) -> str:
    """Writes bytes in the largest binary unit that keeps them whole."""
    return _format(size, {unit: n for unit, n in BYTES_OF.items() if unit == "B" or "i" in unit}, zero="0B")


def parse_host_port(text: str) -> tuple[str, int]:
    """Reads `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ValueError: it is neither, or the port is not within 1 and 65535.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    ok = colon and host and port.isascii() and port.isdecimal() and 0 < int(port) <= _MAX_PORT
    if not ok or (":" in host) is not bracketed or any(c in "[]/ \t\n" for c in host):
        raise ValueError(f"expected HOST:PORT, got {text!r}")
    return host, int(port)


def is_host_port(text: str) -> bool:
    """Whether `parse_host_port` reads it."""
    try:
        parse_host_port(text)
    except ValueError:
        return False
    return True


def join_host_port(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. Names other than localhost are taken for reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _quantity(text: str, units: Mapping[str, int]) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit = Fraction(match[1]), match[2]
    if not unit and number == 0:
        return 0
    if unit not in units:
        raise ValueError(text)
    return round(number * units[unit])


def _format(amount: int, units: Mapping[str, int], zero: str) -> str:
    if amount == 0:
        return zero
    unit = max((unit for unit, size in units.items() if amount % size == 0), key=lambda unit: units[unit])
    return f"{amount // units[unit]}{unit}"
