"""A process that stands in for a collector: takes traces and metrics by OTLP, and drops them. Says where it is."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import grpc

SERVICES: Final = (
    "opentelemetry.proto.collector.trace.v1.TraceService",
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
)


async def main() -> None:
    """Serves until stdin ends."""
    server = grpc.aio.server()

    async def take(_request: bytes, _context: Any) -> bytes:
        return b""

    handler: dict[str, Any] = {"Export": grpc.unary_unary_rpc_method_handler(take)}
    for service in SERVICES:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handler),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(1.0)


if __name__ == "__main__":
    asyncio.run(main())
