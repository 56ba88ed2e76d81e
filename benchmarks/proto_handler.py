"""The greeter's proto under load: a handler, and the same behind a bare `grpc.aio` server.

It parses each request and makes each response, as any servicer does, and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse

SERVICE: Final = "examples.greeter.v1.Greeter"


class ProtoEcho:
    """Gives back the name; `echo` is the same without a proto."""

    async def Greet(self, request: GreetRequest) -> GreetResponse:  # noqa: N802 - the rpc's name
        return GreetResponse(text=request.name)

    async def Chat(self, requests: AsyncIterator[GreetRequest]) -> AsyncIterator[GreetResponse]:  # noqa: N802 - likewise
        async for request in requests:
            yield GreetResponse(text=request.name)

    async def echo(self, payload: bytes) -> bytes:
        return payload


def bare_handler() -> grpc.GenericRpcHandler:
    """The bidirectional rpc for a server of gRPC."""

    async def chat(requests: AsyncIterator[GreetRequest], _context: Any) -> AsyncIterator[GreetResponse]:
        async for request in requests:
            yield GreetResponse(text=request.name)

    handler = grpc.stream_stream_rpc_method_handler(chat, GreetRequest.FromString, GreetResponse.SerializeToString)
    return grpc.method_handlers_generic_handler(SERVICE, {"Chat": handler})
