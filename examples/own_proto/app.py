"""The handler: a servicer as gRPC's own servers have it, of the generated module of `greeter.proto`.

Its methods are `async def`; `def` works as well, and runs in threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse

HELLO = {"de": "Hallo", "en": "Hello", "fr": "Bonjour"}


class Greeter:
    """Greets whoever has a name."""

    async def Greet(self, request: GreetRequest, context: Any) -> GreetResponse:  # noqa: N802 - the rpc's name
        if not request.name:
            await context.abort("INVALID_ARGUMENT", "a name is required", (("field", "name"),))
        return GreetResponse(text=f"Hello, {request.name}!")

    async def GreetInLanguages(self, request: GreetRequest) -> AsyncIterator[GreetResponse]:  # noqa: N802 - likewise
        for hello in HELLO.values():
            yield GreetResponse(text=f"{hello}, {request.name}!")

    async def GreetAll(self, requests: AsyncIterator[GreetRequest]) -> GreetResponse:  # noqa: N802 - likewise
        names = [request.name async for request in requests]
        return GreetResponse(text=f"Hello, {' and '.join(names)}!")

    async def Chat(self, requests: AsyncIterator[GreetRequest]) -> AsyncIterator[GreetResponse]:  # noqa: N802 - likewise
        async for request in requests:
            yield GreetResponse(text=f"Hello, {request.name}!")
