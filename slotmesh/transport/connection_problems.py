"""Finds out why a channel has no connection. For clients and the command line.

Invariants: takes at most about two seconds; neither the channel nor its other rpcs are affected. What it sends has no
credentials, except for those of the channel.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.runtime.channels import Dialer
from slotmesh.security.handshakes import REQUIRES_TLS, ConnectionProblem
from slotmesh.security.identity import Role
from slotmesh.units import parse_host_port

_PROBE: Final = health_pb2.HealthCheckRequest()
_PROBE_S: Final = 1.0


async def connection_problem(
    channel: grpc.aio.Channel, address: str, dialer: Dialer, server: Role
) -> ConnectionProblem | None:
    """Why the channel, which `dialer` has opened to this address, has no connection.

    None if it has one, or if neither certificates nor the protocol is the cause.
    """
    health: Any = health_pb2_grpc.HealthStub(channel)
    try:
        await health.Check(_PROBE, timeout=_PROBE_S)
    except grpc.RpcError as error:
        problem = dialer.problem(error.details() or "", server)
    else:
        return None
    if problem is not None and not problem.is_certain and await _uses_tls(address):
        return REQUIRES_TLS
    return problem


async def _uses_tls(address: str) -> bool:
    """Whether a server answers the first message of TLS; its certificate is not checked, nothing more is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(*parse_host_port(address), ssl=context)
    except (OSError, ValueError):  # TimeoutError and SSLError are OSErrors
        return False
    writer.transport.abort()
    return True
