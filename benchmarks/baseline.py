"""What the mesh is compared with: a bare `grpc.aio` server in a process of its own, one unary echo a call, on uvloop.

It answers the same rpcs with the same messages as a router does, without anything in between. With `--payloads` it
decodes and encodes payloads for the methods of `benchmarks.payload_handler`, as a replica does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from benchmarks.processes import ServerProcess
from benchmarks.proto_handler import bare_handler
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.main import run
from slotmesh.runtime.parent import AnnouncePipe, ParentPipe, announce, watch_parent
from slotmesh.runtime.signals import stop_signals
from slotmesh.v1 import call_pb2, router_service_pb2

_START_TIMEOUT_S = 30.0
LARGE_MESSAGES: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""What is set of a bare server and its clients: messages of any size, no other option."""


async def _echo(request: router_service_pb2.CallRequest, _context: Any) -> router_service_pb2.CallResponse:
    return router_service_pb2.CallResponse(payload=request.payload, content_type=OCTET_STREAM)


def _answering() -> Any:
    from benchmarks.payload_handler import answers  # it needs numpy, and no other part does

    methods = answers()

    async def answer(request: router_service_pb2.CallRequest, _context: Any) -> router_service_pb2.CallResponse:
        options = request.options
        payload = await methods[options.method](options.content_type, request.payload)
        return router_service_pb2.CallResponse(payload=payload, content_type=options.content_type)

    return answer


def _handler(behavior: Any) -> grpc.GenericRpcHandler:
    """The whole service."""
    call = grpc.unary_unary_rpc_method_handler(
        behavior,
        request_deserializer=router_service_pb2.CallRequest.FromString,
        response_serializer=router_service_pb2.CallResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("slotmesh.v1.RouterService", {"Call": call})


def request(
    endpoint: str, method: str, payload: bytes, content_type: str = OCTET_STREAM
) -> router_service_pb2.CallRequest:
    """What a unary client sends, to this server and to a router alike."""
    return router_service_pb2.CallRequest(
        endpoint=endpoint,
        options=call_pb2.CallOptions(method=method, content_type=content_type),
        payload=payload,
    )


@asynccontextmanager
async def bare_server(env: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """A running bare server's address, for as long as the block lasts. `env` adds to its environment.

    Raises:
        CannotStart: it ended before it served.
    """
    async with bare_process((), env) as server:
        yield server.address


@asynccontextmanager
async def bare_process(flags: Sequence[str], env: Mapping[str, str] | None = None) -> AsyncIterator[ServerProcess]:
    """The same as a process. Raises CannotStart, as `bare_server`."""
    with ParentPipe() as parent, AnnouncePipe() as announced:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.baseline"),
            f"--parent-fd={parent.fd}",
            f"--announce-fd={announced.fd}",
            *flags,
            pass_fds=(*parent.pass_fds, *announced.pass_fds),
            env={**os.environ, **(env or {})},
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                address = await announced.address()
            if address is None:
                raise CannotStart("the bare server ended before it served; why is above")
            yield ServerProcess("bare server", child, address)
        finally:
            if child.returncode is None:
                child.terminate()
            await child.wait()


async def _serve(given: argparse.Namespace) -> None:
    with stop_signals() as stop:
        watch_parent(given.parent_fd, stop.set)
        server = grpc.aio.server(options=LARGE_MESSAGES)
        server.add_generic_rpc_handlers((_handler(_answering() if given.payloads else _echo), bare_handler()))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        announce(given.announce_fd, f"127.0.0.1:{port}")
        await stop.wait()
        await server.stop(None)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baseline", description="A bare grpc.aio server.")
    parser.add_argument("--parent-fd", type=int, required=True)
    parser.add_argument("--announce-fd", type=int, required=True)
    parser.add_argument("--payloads", action="store_true")
    given = parser.parse_args()
    run(lambda: _serve(given), log_level="warning")


if __name__ == "__main__":
    _main()
