"""What the mesh is compared with: a bare `grpc.aio` server in a process of its own, one unary echo a call, on uvloop.

It answers the same rpcs with the same messages as a router does, without anything in between.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc

from benchmarks.proto_handler import bare_handler
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.main import run
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe, announce, watch_parent
from slotmesh.runtime.signals import stop_signals
from slotmesh.v1 import call_pb2, router_service_pb2

_START_TIMEOUT_S = 30.0


async def _echo(request: router_service_pb2.CallRequest, _context: Any) -> router_service_pb2.CallResponse:
    return router_service_pb2.CallResponse(payload=request.payload, content_type=OCTET_STREAM)


def _handler() -> grpc.GenericRpcHandler:
    """The whole service."""
    call = grpc.unary_unary_rpc_method_handler(
        _echo,
        request_deserializer=router_service_pb2.CallRequest.FromString,
        response_serializer=router_service_pb2.CallResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("slotmesh.v1.RouterService", {"Call": call})


def request(endpoint: str, method: str, payload: bytes) -> router_service_pb2.CallRequest:
    """What a unary client sends, to this server and to a router alike."""
    return router_service_pb2.CallRequest(
        endpoint=endpoint,
        options=call_pb2.CallOptions(method=method, content_type=OCTET_STREAM),
        payload=payload,
    )


@asynccontextmanager
async def bare_server(env: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """A running bare server's address, for as long as the block lasts. `env` adds to its environment.

    Raises:
        CannotStart: it ended before it served.
    """
    with ParentPipe() as parent, AnnouncePipe() as announced:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.baseline"),
            f"--parent-fd={parent.fd}",
            f"--announce-fd={announced.fd}",
            pass_fds=(*parent.pass_fds, *announced.pass_fds),
            env={**os.environ, **(env or {})},
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                address = await announced.address()
            if address is None:
                raise CannotStart("the bare server ended before it served; why is above")
            yield address
        finally:
            if child.returncode is None:
                child.terminate()
            await child.wait()


async def _serve(parent_fd: int, announce_fd: int) -> None:
    with stop_signals() as stop:
        watch_parent(parent_fd, stop.set)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_handler(), bare_handler()))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        announce(announce_fd, f"127.0.0.1:{port}")
        await stop.wait()
        await server.stop(None)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baseline", description="A bare grpc.aio server.")
    parser.add_argument("--parent-fd", type=int, required=True)
    parser.add_argument("--announce-fd", type=int, required=True)
    given = parser.parse_args()
    run(lambda: _serve(given.parent_fd, given.announce_fd), log_level="warning")


if __name__ == "__main__":
    _main()
