"""Rpcs of a user's own proto that share objects: an exception, a response, context variables, tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any, Final

import grpc
import pytest

import slotmesh
from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse
from tests.contract.own_protos.greeters import error_of, greeting, request, requests

pytestmark = pytest.mark.asyncio

WHO: ContextVar[str] = ContextVar("who", default="unset")
COUNT: Final = 24


class Shares:
    """What all calls raise, and what all calls return."""

    def __init__(self) -> None:
        self.error = LookupError("shared")
        self.response = GreetResponse()

    def answer(self, name: str) -> GreetResponse:
        before = WHO.get()
        WHO.set(name)
        self.response.text = f"{before} {name}"
        return self.response

    def fail(self, name: str, context: Any) -> None:
        """Raises; with trailing metadata, or after a status was set, as the name says."""
        if name.startswith("trailers"):
            context.set_trailing_metadata((("who", name),))
        if "status" in name:
            context.set_code("NOT_FOUND")
        raise self.error


class AsyncShares(Shares):
    async def Greet(self, request: GreetRequest, context: Any) -> GreetResponse:
        if request.name in {"abort", "trailers abort"}:
            context.abort(grpc.StatusCode.ABORTED, "no", (("who", request.name),))
        if not request.name.startswith("name"):
            self.fail(request.name, context)
        if request.name.endswith("7"):
            await asyncio.sleep(0)
        return self.answer(request.name)

    async def GreetInLanguages(self, request: GreetRequest, context: Any) -> AsyncIterator[GreetResponse]:
        yield self.answer(request.name)
        if not request.name.startswith("name"):
            self.fail(request.name, context)

    async def GreetAll(self, requests: AsyncIterator[GreetRequest], context: Any) -> GreetResponse:
        async for each in requests:
            self.fail(each.name, context)
        return GreetResponse()


class PlainShares(Shares):
    def Greet(self, request: GreetRequest, context: Any) -> GreetResponse:
        if request.name in {"abort", "trailers abort"}:
            context.abort(grpc.StatusCode.ABORTED, "no", (("who", request.name),))
        if not request.name.startswith("name"):
            self.fail(request.name, context)
        return GreetResponse.FromString(self.answer(request.name).SerializeToString())

    def GreetInLanguages(self, request: GreetRequest, context: Any) -> Iterator[GreetResponse]:
        yield self.answer(request.name)
        if not request.name.startswith("name"):
            self.fail(request.name, context)

    def GreetAll(self, requests: Iterator[GreetRequest], context: Any) -> GreetResponse:
        for each in requests:
            self.fail(each.name, context)
        return GreetResponse()


HANDLERS: Final = pytest.mark.parametrize(
    "handler", [AsyncShares, PlainShares, slotmesh.deployment(own_loop=True)(type("OwnLoop", (AsyncShares,), {}))]
)


@HANDLERS
@pytest.mark.parametrize("method", ["Greet", "GreetInLanguages", "GreetAll"])
async def test_metadata_goes_with_the_failure_of_its_own_call(handler: Any, method: str) -> None:
    async with greeting(handler) as (mesh, stub):

        async def trailers_of(name: str) -> tuple[grpc.StatusCode, list[str]]:
            rpc = getattr(stub, method)
            error = await error_of(rpc(requests(name)) if method == "GreetAll" else rpc(request(name)))
            return error.code(), [str(value) for key, value in error.trailing_metadata() if key == "who"]

        assert await trailers_of("trailers 1") == (grpc.StatusCode.UNKNOWN, ["trailers 1"])
        assert await trailers_of("none") == (grpc.StatusCode.UNKNOWN, [])
        assert await trailers_of("trailers 2") == (grpc.StatusCode.UNKNOWN, ["trailers 2"])
        assert await trailers_of("trailers status") == (grpc.StatusCode.NOT_FOUND, ["trailers status"])
        assert await trailers_of("status") == (grpc.StatusCode.NOT_FOUND, [])
        if method == "Greet":
            assert await trailers_of("abort") == (grpc.StatusCode.ABORTED, ["abort"])
        error = mesh.instances("greeter")[0].error
        assert error.__dict__ == {}
        assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


@HANDLERS
async def test_each_call_has_its_own_response_and_its_own_context(handler: Any) -> None:
    async with greeting(handler) as (_, stub):
        names = [f"name {index}" for index in range(COUNT)]
        got = await asyncio.gather(*(stub.Greet(request(name)) for name in names))
        if handler is not PlainShares:  # threads share the response at the same time
            assert [each.text for each in got] == [f"unset {name}" for name in names]
        assert all(each.text.startswith("unset ") for each in got)
        values = [[each.text async for each in stub.GreetInLanguages(request(name))] for name in names]
        assert values == [[f"unset {name}"] for name in names]
