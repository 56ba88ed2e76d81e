"""Probes of the kubelet: exec, httpGet, grpc and tcpSocket are executed against the pod."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Execute = Callable[[Sequence[str]], Awaitable[int]]
"""Runs a command in the container; returns its exit status."""
_UNVERIFIED: Final = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE


async def is_passed(handler: Mapping[str, Any], address: str, ports: Mapping[str, int], execute: Execute) -> bool:
    """Whether the handler of a probe, or of a hook, succeeds within its timeout.

    `address`: of the pod. `ports`: of the container, by name.
    """
    with suppress(OSError, TimeoutError, grpc.aio.AioRpcError, ValueError, IndexError):
        async with asyncio.timeout(handler.get("timeoutSeconds", 1)):
            if "exec" in handler:
                return await execute(handler["exec"]["command"]) == 0
            if "httpGet" in handler:
                return 200 <= await _http_status(handler["httpGet"], address, ports) < 400
            if "grpc" in handler:
                return await _serves(f"{address}:{handler['grpc']['port']}", handler["grpc"].get("service") or "")
            if "tcpSocket" in handler:
                _, writer = await asyncio.open_connection(address, _port(handler["tcpSocket"]["port"], ports))
                writer.close()
                return True
    return False


async def _http_status(get: Mapping[str, Any], address: str, ports: Mapping[str, int]) -> int:
    host = get.get("host") or address
    is_tls = get.get("scheme") == "HTTPS"
    reader, writer = await asyncio.open_connection(host, _port(get["port"], ports), ssl=_UNVERIFIED if is_tls else None)
    try:
        headers = "".join(f"{it['name']}: {it['value']}\r\n" for it in get.get("httpHeaders", ()))
        head = f"GET {get.get('path') or '/'} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
        writer.write(head.encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def _serves(target: str, service: str) -> bool:
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _port(port: int | str, ports: Mapping[str, int]) -> int:
    return ports[port] if isinstance(port, str) and port in ports else int(port)
