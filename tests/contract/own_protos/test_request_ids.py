"""Rpcs of own protos that are repeated with their id: executed once, answered alike."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from examples.own_proto.greeter_pb2_grpc import GreeterStub
from slotmesh.errors import Failure
from slotmesh.security.identity import CALLER, Identity
from slotmesh.server.call_values import identity_of_own_rpc
from slotmesh.status import from_rpc_error
from tests.contract.own_protos.greeters import AsyncGreeter, greeting, opened, request, requests
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio
METADATA = (("slotmesh-request-id", "id-1"),)


class WaitingGreeter(AsyncGreeter):
    """Greets when it may, and aborts where the name is `fail`."""

    begun_ever: list[str]
    gate: asyncio.Event

    async def Greet(self, request: Any, context: Any) -> Any:  # type: ignore[override]  # handlers may take a context
        self.begun_ever.append(request.name)
        await self.gate.wait()
        context.set_trailing_metadata((("count", str(len(self.begun_ever))),))
        if request.name == "fail":
            await context.abort(grpc.StatusCode.DATA_LOSS, "no greeting")
        return await super().Greet(request)

    async def GreetInLanguages(self, request: Any, context: Any) -> Any:
        self.begun_ever.append(request.name)
        async for response in super().GreetInLanguages(request, context):
            yield response


@pytest.fixture(autouse=True)
def begun() -> list[str]:
    WaitingGreeter.begun_ever, WaitingGreeter.gate = [], asyncio.Event()
    return WaitingGreeter.begun_ever


async def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc_error(raised.value)


async def test_a_repetition_over_another_router_gets_the_first_response(begun: list[str]) -> None:
    async with greeting(WaitingGreeter, routers=2) as (mesh, _):
        first, second = mesh.router_addresses
        async with opened(first) as one, opened(second) as two:
            lost: Any = GreeterStub(one).Greet(request("Ada"), metadata=METADATA)
            await wait_until(lambda: begun)
            await mesh.kill_router(first)
            assert (await within(failure_of(lost), "the loss")).reason.value == "ROUTER_LOST"
            stub: Any = GreeterStub(two)
            WaitingGreeter.gate.set()
            for _ in range(2):
                again = stub.Greet(request("Ada"), metadata=METADATA)
                assert (await again).text == "Ada"
                assert ("count", "1") in tuple(await again.trailing_metadata())
            of_model = (*METADATA, ("slotmesh-model-id", "m"))
            for other in (
                stub.Greet(request("Grace"), metadata=METADATA),
                stub.Greet(request("Ada"), metadata=of_model),
            ):
                assert "id of another call" in (await failure_of(other)).message
    assert begun == ["Ada"]


async def test_statuses_and_several_responses_are_kept(begun: list[str]) -> None:
    WaitingGreeter.gate.set()
    async with greeting(WaitingGreeter) as (_, stub):
        for _ in range(2):
            failed = stub.Greet(request("fail"), metadata=METADATA)
            assert (await failure_of(failed)).message == "no greeting"
            assert await failed.code() is grpc.StatusCode.DATA_LOSS
            call = stub.GreetInLanguages(request("Ada"), metadata=(("slotmesh-request-id", "id-2"),))
            assert [it.text async for it in call] == ["Hallo, Ada!", "Hello, Ada!", "Bonjour, Ada!"]
            assert ("count", "3") in tuple(await call.trailing_metadata())
    assert begun == ["fail", "Ada"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ((("slotmesh-shard-key", "k"),), "slotmesh-shard-key: has no effect beside slotmesh-request-id"),
        ((("slotmesh-affinity-key", "k"),), "slotmesh-affinity-key: has no effect beside slotmesh-request-id"),
        ((("slotmesh-request-id", "again"),), "slotmesh-request-id: is given twice"),
    ],
)
async def test_what_excludes_an_id_is_refused(more: Any, problem: str, begun: list[str]) -> None:
    async with greeting(WaitingGreeter) as (_, stub):
        assert problem in (await failure_of(stub.Greet(request("Ada"), metadata=(*METADATA, *more)))).message
        several = await failure_of(stub.GreetAll(requests("Ada"), metadata=METADATA))
        assert "slotmesh-request-id: has no effect on an rpc with several requests" in several.message
        blank = await failure_of(stub.Greet(request("Ada"), metadata=(("slotmesh-request-id", "a b"),)))
        assert "slotmesh-request-id: must be 1 … 128" in blank.message
    assert not begun


async def test_ids_are_each_callers_own() -> None:
    found = []
    for name in ("ada", "grace"):
        token = CALLER.set(Identity(name=name, roles=frozenset()))
        found.append(identity_of_own_rpc("id-1", "/p.S/M", "", "", b"x"))
        CALLER.reset(token)
    assert [it.caller for it in found] == ["ada", "grace"]
