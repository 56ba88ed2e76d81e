"""Whether a server may listen where its settings say: the one rule for all services and all of their ports. Pure.

Invariants: without TLS nobody is asked who they are, so only this machine may reach the port, unless `--insecure` says
that the network is trusted; tokens travel by TLS only.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from typing import Final

from slotmesh.units import is_loopback


class Reach(Enum):
    """Who can connect to a host that a server listens on."""

    UNIX_SOCKET = "processes that may open a file"
    LOOPBACK = "this machine"
    WILDCARD = "every network of this machine"
    OTHER = "a network"


SET_UP: Final = "`slotmesh certs init --dir certs` makes certificates, `--tls-dir certs` (SLOTMESH_TLS_DIR) uses them"
"""The two commands that set up TLS."""


def reach_of(host: str) -> Reach:
    """Who can connect. Names other than localhost are taken for those of other machines."""
    if host.startswith(("unix:", "/")):
        return Reach.UNIX_SOCKET
    if is_loopback(host):
        return Reach.LOOPBACK
    try:
        return Reach.WILDCARD if ipaddress.ip_address(host).is_unspecified else Reach.OTHER
    except ValueError:
        return Reach.OTHER


def start_problem(host: str, *, tls: bool, tokens: bool, insecure: bool) -> str | None:
    """Why a server may not start that listens on `host`, and the way out; None where it may.

    `tls`: it has a certificate and an authority. `tokens`: callers are known by bearer tokens. `insecure`: it was said
    that it may do without.
    """
    if tls:
        return None
    if tokens:
        return f"tokens need TLS, or everybody on the way reads them: {SET_UP}"
    if insecure or reach_of(host) in (Reach.LOOPBACK, Reach.UNIX_SOCKET):
        return None
    return (
        f"{host} can be reached from other machines, and there is neither encryption nor authentication: {SET_UP}; or"
        " use 127.0.0.1, or allow it with --insecure (SLOTMESH_INSECURE=true) on a network you trust"
    )
