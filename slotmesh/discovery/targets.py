"""Servers as people name them: `HOST:PORT`, `dns:///NAME:PORT`, or several with commas between them. Pure.

The form of names is that of gRPC (`dns://RESOLVER/NAME:PORT`). The port is required: the mesh has no default one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from slotmesh.units import join_host_port, parse_host_port

SCHEME: Final = "dns:"
DNS_PORT: Final = 53
FORMS: Final = "HOST:PORT or dns:///NAME:PORT"
DNS_EXAMPLE: Final = "dns:///controllers.mesh.svc:7070"


class DnsName(NamedTuple):
    """A name each of whose addresses is a server on this port."""

    host: str
    port: int
    resolver: tuple[str, int] | None = None
    """IP address and port of the DNS server that resolves it; None: as the operating system does."""

    def __str__(self) -> str:
        resolver = "" if self.resolver is None else join_host_port(*self.resolver)
        return f"{SCHEME}//{resolver}/{join_host_port(self.host, self.port)}"


Target = str | DnsName
"""`HOST:PORT`, which is connected to as it is; or a name that is resolved."""


def parse_target(text: str) -> Target:
    """Reads one target, without spaces around it.

    Raises:
        ValueError: it has none of the forms.
    """
    if not text.startswith(SCHEME):
        try:
            return join_host_port(*parse_host_port(text))
        except ValueError:
            raise ValueError(f"expected {FORMS}, got {text!r}") from None
    resolver, slash, name = text.removeprefix(f"{SCHEME}//").partition("/")
    if not (slash and text.startswith(f"{SCHEME}//")):
        raise ValueError(f"expected dns:///NAME:PORT (three slashes), got {text!r}")
    try:
        host, port = parse_host_port(name)
    except ValueError:
        raise ValueError(f"expected dns:///NAME:PORT, with the port of the servers, got {text!r}") from None
    return DnsName(host, port, _resolver(resolver, text) if resolver else None)


def parse_targets(given: str | Sequence[str]) -> tuple[Target, ...]:
    """Reads targets with commas between them, or a sequence of targets. Each once, in the order given.

    Raises:
        ValueError: there is no target, or one has none of the forms.
    """
    try:
        each = given.split(",") if isinstance(given, str) else list(given)
        texts = [str.strip(text) for text in each]
    except TypeError:
        raise ValueError(f"addresses must be {FORMS}, or a sequence of these, got {given!r}") from None
    if not texts:
        raise ValueError(f"expected an address, as {FORMS}, got none")
    return tuple(dict.fromkeys(parse_target(text) for text in texts))


def _resolver(text: str, whole: str) -> tuple[str, int]:
    has_port = text.startswith("[") or text.count(":") == 1
    try:
        host, port = parse_host_port(text) if has_port and not text.endswith("]") else (text.strip("[]"), DNS_PORT)
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(
            f"expected the IP address of a DNS server before the name, as dns://10.0.0.10:53/NAME:PORT, or nothing"
            f" there (dns:///NAME:PORT), got {whole!r}"
        ) from None
    return host, port
