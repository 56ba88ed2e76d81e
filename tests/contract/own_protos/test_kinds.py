"""Rpcs of a user's own proto at the router, all four kinds, with handlers that are `async def` and `def`."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import grpc
import pytest

import slotmesh
import slotmesh.testing
from examples.own_proto import greeter_pb2
from examples.own_proto.app import Greeter
from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse
from examples.own_proto.greeter_pb2_grpc import GreeterStub
from slotmesh.spec.model import TrafficPolicy
from slotmesh.testing import Backend
from tests.contract.own_protos.greeters import SERVICE, AsyncGreeter, PlainGreeter, greeting, opened, request, requests
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio
UNKNOWN_FIELD = b"\x9a\x06\x03new"
"""Field 99 of a newer version of the proto."""


async def test_a_request_and_its_response_pass_as_they_are_unknown_fields_too() -> None:
    async with greeting() as (mesh, _), opened(mesh.router_addresses[0]) as channel:
        sent = request("Ada").SerializeToString() + UNKNOWN_FIELD

        assert await channel.unary_unary(f"/{SERVICE}/Greet")(sent) == sent


async def test_a_handler_that_yields_gives_several_responses_with_its_metadata() -> None:
    async with greeting() as (_, stub):
        call: Any = stub.GreetInLanguages(request("Ada"))
        texts = [response.text async for response in call]

        assert texts == ["Hallo, Ada!", "Hello, Ada!", "Bonjour, Ada!"]
        assert ("first", "yes") in tuple(await call.initial_metadata())
        assert tuple(await call.trailing_metadata()) == (("count", "3"), ("raw-bin", b"\x00\xff"))
        assert await call.code() is grpc.StatusCode.OK


async def test_several_requests_have_one_response() -> None:
    async with greeting() as (mesh, stub):
        response = await stub.GreetAll(requests("Ada", "Grace", ""))

        assert response.text == "Ada Grace "
        assert mesh.instances("greeter")[0].took == ["Ada", "Grace", ""]


async def test_no_request_at_all_is_a_call_too() -> None:
    async with greeting() as (_, stub):
        assert (await stub.GreetAll(requests())).text == ""


async def test_each_request_is_answered_as_it_comes() -> None:
    async with greeting() as (mesh, _), opened(mesh.router_addresses[0]) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Chat")()
        for number in range(5):
            sent = request(f"name {number}").SerializeToString() + UNKNOWN_FIELD
            await call.write(sent)
            assert await call.read() == sent
        await call.done_writing()

        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("own_loop", [False, True])
async def test_many_requests_keep_their_order_whatever_their_size(own_loop: bool) -> None:
    class OnLoop(AsyncGreeter):
        pass

    handler = Backend(slotmesh.deployment(own_loop=own_loop)(OnLoop))
    names = [f"{number}" + "x" * size for number, size in enumerate([0] * 300 + [300_000, 1, 700_000] + [0] * 100)]
    async with greeting(handler) as (_, stub):
        texts = [response.text async for response in stub.Chat(requests(*names))]

        assert texts == names


async def test_methods_in_threads_serve_all_kinds() -> None:
    async with greeting(PlainGreeter) as (_, stub):
        call: Any = stub.Greet(request("Ada"))
        assert (await call).text == "ADA"
        assert tuple(await call.trailing_metadata()) == (("who", "Ada"),)
        assert [each.text async for each in stub.GreetInLanguages(request("Ada"))] == ["Hallo Ada", "Hello Ada"]
        assert (await stub.GreetAll(requests("Ada", "Grace"))).text == "Ada Grace"
        names = [f"n{number}" for number in range(200)]
        assert [each.text async for each in stub.Chat(requests(*names))] == [name.upper() for name in names]


async def test_a_batch_method_serves_rpcs_of_many_clients_at_once() -> None:
    sizes: list[int] = []

    class Batching:
        @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=10.0)
        async def Greet(self, requests: list[GreetRequest]) -> list[GreetResponse]:
            sizes.append(len(requests))
            return [GreetResponse(text=each.name) for each in requests]

    async with greeting(Batching) as (_, stub):
        async with asyncio.timeout(20):
            calls = [stub.Greet(request(str(number))) for number in range(8)]
            responses = [await call for call in calls]

    assert [each.text for each in responses] == list("01234567")
    assert sizes == [8]


async def test_metadata_says_how_the_call_is_treated() -> None:
    async with greeting() as (mesh, stub):
        said = (("slotmesh-ordering-key", "k"), ("slotmesh-slo", "50ms"), ("slotmesh-endpoint", "greeter"))
        await stub.Greet(request("Ada"), metadata=said, timeout=20)
        await stub.Greet(request("Ada"), metadata=(("slotmesh-shard-key", "s"), ("slotmesh-affinity-key", "a")))

        keyed, sharded = mesh.instances("greeter")[0].contexts
        assert keyed.ordering_key == "k"
        assert keyed.method == f"{SERVICE}/Greet"
        assert keyed.endpoint == "greeter"
        assert keyed.deadline is not None
        # gRPC rounds a timeout up to what it can write in three digits.
        assert 0 < keyed.time_left() <= 21
        assert (sharded.shard_key, sharded.affinity_key) == ("s", "a")
        assert sharded.deadline is None


async def test_the_example_greets() -> None:
    async with greeting(Greeter) as (_, stub):
        assert (await stub.Greet(request("Ada"))).text == "Hello, Ada!"
        assert (await stub.GreetAll(requests("Ada", "Grace"))).text == "Hello, Ada and Grace!"
        assert [each.text async for each in stub.Chat(requests("Ada"))] == ["Hello, Ada!"]


async def test_a_shadow_gets_copies_of_rpcs_with_one_request() -> None:
    policy = TrafficPolicy(weights={"greeter": 1.0}, shadows={"copied": 1.0})
    services = {"greeter": [greeter_pb2]}
    backends = {"greeter": AsyncGreeter, "copied": AsyncGreeter}
    async with (
        slotmesh.testing.mesh(backends, traffic={"greeter": policy}, grpc_services=services) as mesh,
        opened(mesh.router_addresses[0]) as channel,
    ):
        stub: Any = GreeterStub(channel)
        copied = mesh.instances("copied")[0]
        assert [each.text async for each in stub.Chat(requests("Ada", "Grace"))] == ["Ada", "Grace"]
        assert (await stub.GreetAll(requests("Ada"))).text
        await stub.Greet(request("Ada"))
        await wait_until(lambda: copied.contexts, what="the copy of the one request")

        assert copied.contexts[0].is_shadow
        assert copied.begun == ["Greet"]


def plain(function: Any) -> Any:
    """A decorator that is a `def`."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class DecoratedGreeter(AsyncGreeter):
    Greet = plain(AsyncGreeter.Greet)
    GreetInLanguages = plain(AsyncGreeter.GreetInLanguages)
    GreetAll = plain(AsyncGreeter.GreetAll)
    Chat = plain(AsyncGreeter.Chat)


async def test_decorators_change_nothing() -> None:
    async with greeting(DecoratedGreeter) as (mesh, stub):
        assert (await stub.Greet(request("Ada"))).text == "Ada"
        assert len([response async for response in stub.GreetInLanguages(request("Ada"))]) == 3
        assert (await stub.GreetAll(requests("Ada", "Grace"))).text == "Ada Grace"
        assert [response async for response in stub.Chat(requests("Ada"))]
        assert mesh.instances("greeter")[0].begun[0] == "Greet"
