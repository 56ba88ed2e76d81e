"""Whether a server may listen on its host: the one rule for all services and all of their ports. Pure.

Invariants: without TLS clients are not authenticated, so that only this machine may reach the port, unless `--insecure`
declares the network trusted; tokens are sent over TLS only.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from typing import Final

from slotmesh.units import is_loopback


class Reach(Enum):
    """The clients that can connect to a host on which a server listens."""

    UNIX_SOCKET = "processes that may open a file"
    LOOPBACK = "this machine"
    WILDCARD = "every network of this machine"
    OTHER = "a network"


SET_UP: Final = "`slotmesh certs init --dir certs` makes certificates, `--tls-dir certs` (SLOTMESH_TLS_DIR) uses them"
"""The two commands that set up TLS."""


def reach_of(host: str) -> Reach:
    """The clients that can connect. Names other than localhost are assumed to be reachable from other machines."""
    if host.startswith(("unix:", "/")):
        return Reach.UNIX_SOCKET
    if is_loopback(host):
        return Reach.LOOPBACK
    try:
        return Reach.WILDCARD if ipaddress.ip_address(host).is_unspecified else Reach.OTHER
    except ValueError:
        return Reach.OTHER


def start_problem(host: str, *, tls: bool, tokens: bool, insecure: bool) -> str | None:
    """Why a server may not listen on `host`, with the way out; None if it may.

    `tls`: it has a certificate and an authority. `tokens`: it authenticates bearer tokens. `insecure`: plain text was
    explicitly allowed.
    """
    if tls:
        return None
    if tokens:
        return f"tokens need TLS, as anyone on the network could read them: {SET_UP}"
    if insecure or reach_of(host) in (Reach.LOOPBACK, Reach.UNIX_SOCKET):
        return None
    return (
        f"{host} can be reached from other machines, and there is neither encryption nor authentication: {SET_UP}; or"
        " use 127.0.0.1, or allow it with --insecure (SLOTMESH_INSECURE=true) on a network you trust"
    )
