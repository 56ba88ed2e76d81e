"""Finds out why a channel has no connection. For clients and the command line.

Purpose: gRPC reports the error of one address only, whichever failed last. Where a name has several, as localhost has
::1 and 127.0.0.1, nothing may listen there. So each is asked by a channel of its own.
Invariants: takes at most about four seconds; neither the channel nor its other rpcs are affected. What it sends has no
credentials, except for those of the channel.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.discovery.targets import DnsName
from slotmesh.runtime.channels import Dialer
from slotmesh.security.handshakes import REQUIRES_TLS, ConnectionProblem
from slotmesh.security.identity import Role
from slotmesh.transport.name_lookups import LookupFailed, NameLookups
from slotmesh.units import join_host_port, parse_host_port

_PROBE: Final = health_pb2.HealthCheckRequest()
_PROBE_S: Final = 1.0
_MAX_ADDRESSES: Final = 4
"""Of a name, that are asked."""


async def connection_problem(
    channel: grpc.aio.Channel, address: str, dialer: Dialer, server: Role
) -> ConnectionProblem | None:
    """Why the channel, which `dialer` has opened to this address, has no connection.

    None if it has one, or if neither certificates nor the protocol is the cause, or if that was not found out.
    """
    details = await _failure(channel)
    if details is None:
        return None
    problem = await _cause(details, address, dialer, server)
    if problem is not None:
        return problem
    several = await _addresses(address)
    failures = await asyncio.gather(*(_failure_at(each, address, dialer, server) for each in several))
    problems: list[ConnectionProblem] = []
    for each, said in zip(several, failures, strict=True):
        if said is None:
            return None
        if found := await _cause(said, each, dialer, server):
            problems.append(found)
    return min(problems, key=lambda found: not found.is_certain, default=None)


async def _failure(channel: grpc.aio.Channel) -> str | None:
    """What gRPC says of an rpc that failed; None if a server answers, or if the channel is closed."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    try:
        await health.Check(_PROBE, timeout=_PROBE_S)
    except grpc.RpcError as error:
        return error.details() or ""
    except grpc.aio.UsageError:
        pass
    return None


async def _failure_at(address: str, name: str, dialer: Dialer, server: Role) -> str | None:
    async with dialer.open(address, server, host=parse_host_port(name)[0]) as channel:
        return await _failure(channel)


async def _cause(details: str, address: str, dialer: Dialer, server: Role) -> ConnectionProblem | None:
    problem = dialer.problem(details, server)
    if problem is not None and not problem.is_certain and await _uses_tls(address):
        return REQUIRES_TLS
    return problem


async def _addresses(address: str) -> Sequence[str]:
    """Those of the name in this address, also a single one: gRPC may know more. None of an IP address."""
    host, port = parse_host_port(address)
    try:
        ip_address(host)
    except ValueError:
        pass
    else:
        return ()
    try:
        async with asyncio.timeout(_PROBE_S):
            hosts = dict.fromkeys(await NameLookups()(DnsName(host, port)))
    except (LookupFailed, TimeoutError):
        return ()
    return [join_host_port(each, port) for each in list(hosts)[:_MAX_ADDRESSES]]


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
