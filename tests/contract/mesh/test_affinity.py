"""Calls with an affinity key in a whole mesh of three routers, whichever way they come."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

import slotmesh
import slotmesh.testing
from examples.own_proto import greeter_pb2
from examples.own_proto.greeter_pb2_grpc import GreeterStub
from slotmesh.codec import JSON
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import open_channel
from slotmesh.testing import Backend, RunningMesh
from slotmesh.v1 import call_pb2, router_service_pb2
from slotmesh.v1.router_service_pb2_grpc import RouterServiceStub
from tests.contract.inference.inference_client import request
from tests.support.ingresses import served_mesh
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

ROUTERS = 3
REPLICAS = 5
KEYS = [f"user-{number}" for number in range(100)]
TIMEOUT_S = 20


class Places:
    """Returns where it runs."""

    gate: asyncio.Event
    held = 0

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def __call__(self) -> str:
        self.keys.append(slotmesh.context().affinity_key)
        return slotmesh.context().replica_id

    async def hold(self) -> str:
        Places.held += 1
        await self.gate.wait()
        return slotmesh.context().replica_id

    async def infer(self, x: Any) -> Any:
        self.keys.append(slotmesh.context().affinity_key)
        return x

    async def Greet(self, request: greeter_pb2.GreetRequest) -> greeter_pb2.GreetResponse:
        return greeter_pb2.GreetResponse(text=slotmesh.context().replica_id)


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RunningMesh]:
    Places.gate, Places.held = asyncio.Event(), 0
    backend = Backend(Places, num_replicas=REPLICAS, max_ongoing=8)
    async with slotmesh.testing.mesh({"places": backend}, routers=ROUTERS) as mesh:
        yield mesh


async def replicas_of_keys(address: str, keys: list[str]) -> dict[str, str]:
    """Where one router sends a call of each key."""
    async with slotmesh.connect(address) as client:
        views = {key: client.endpoint("places").options(affinity_key=key) for key in keys}
        return {key: await within(view(), "a call") for key, view in views.items()}


async def test_all_routers_send_a_key_to_the_same_replica(mesh: RunningMesh) -> None:
    found = [await replicas_of_keys(address, KEYS) for address in mesh.router_addresses]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0].values())) == REPLICAS


async def test_keys_of_a_replica_that_ends_go_to_the_one_in_its_place_and_others_stay(mesh: RunningMesh) -> None:
    address, *_ = mesh.router_addresses
    before = await replicas_of_keys(address, KEYS[:30])
    killed = before[KEYS[0]]
    await mesh.kill_replica(killed)
    await mesh.wait_ready()
    after = await replicas_of_keys(address, KEYS[:30])
    (new,) = set(mesh.replica_ids("places")) - set(before.values())
    assert after == {key: new if replica == killed else replica for key, replica in before.items()}


async def test_calls_of_one_key_run_side_by_side_and_spill_over(mesh: RunningMesh) -> None:
    async with slotmesh.connect(mesh.router_addresses[0]) as client:
        view = client.endpoint("places").options(affinity_key="k")
        first = await within(view(), "a call")
        calls = [view.hold() for _ in range(6)]
        await wait_until(lambda: Places.held == 6, what="6 calls at once")
        Places.gate.set()
        where = Counter(await within(asyncio.gather(*calls), "calls"))
    assert where[first] == 4, "half of its permits"
    assert len(where) == 2


async def test_calls_go_to_one_replica_whichever_way_they_come(mesh: RunningMesh) -> None:
    address = mesh.router_addresses[0]
    options = call_pb2.CallOptions(affinity_key="k", content_type=JSON)
    where: dict[str, Any] = defaultdict(str)
    async with slotmesh.connect(address) as client, open_channel(address) as channel:
        view = client.endpoint("places").options(affinity_key="k")
        where["stream"] = await view()
        where["unary"] = await view.method("__call__").unary()
        async with client.endpoint("places").reserve(affinity_key="k") as slot:
            where["slot"] = await slot()
        async with view.reserve() as slot:
            where["slot of a view"] = await slot()
        stub: Any = RouterServiceStub(channel)
        wire = router_service_pb2.CallRequest(endpoint="places", options=options, payload=b"[]")
        where["rpc"] = (await stub.Call(wire, timeout=TIMEOUT_S)).replica_id
        inference: Any = GRPCInferenceServiceStub(channel)
        metadata = (("slotmesh-affinity-key", "k"),)
        before = {each: len(mesh.instance(each).keys) for each in mesh.replica_ids("places")}
        await inference.ModelInfer(request("places", {"x": [1, 2]}), metadata=metadata, timeout=TIMEOUT_S)
        (where["inference"],) = [each for each, count in before.items() if len(mesh.instance(each).keys) > count]
    assert len(set(where.values())) == 1, where
    assert mesh.instance(where["stream"]).keys == ["k", "k", "", "", "k", "k"], "a call in a slot has no key"


async def test_own_rpcs_have_affinity_keys() -> None:
    backend = Backend(Places, num_replicas=REPLICAS)
    async with slotmesh.testing.mesh({"places": backend}, grpc_services={"places": [greeter_pb2]}) as mesh:
        async with open_channel(mesh.router_addresses[0]) as channel:
            stub: Any = GreeterStub(channel)
            where = await replicas_of_keys(mesh.router_addresses[0], KEYS[:10])
            for key in KEYS[:10]:
                metadata = (("slotmesh-affinity-key", key),)
                response = await stub.Greet(greeter_pb2.GreetRequest(name="Ada"), metadata=metadata, timeout=TIMEOUT_S)
                assert response.text == where[key]
            metadata = (("slotmesh-affinity-key", "x" * 1025),)
            with pytest.raises(grpc.aio.AioRpcError) as wrong:
                await stub.Greet(greeter_pb2.GreetRequest(name="Ada"), metadata=metadata, timeout=TIMEOUT_S)
            assert "slotmesh-affinity-key: at most 1024 bytes" in str(wrong.value.details())


async def test_http_has_affinity_keys() -> None:
    async with served_mesh({"places": Backend(Places, num_replicas=REPLICAS)}) as served:
        where = await replicas_of_keys(served.mesh.router_addresses[0], KEYS[:10])
        for key in KEYS[:10]:
            answer = await served.ask("POST", "/places/__call__", b"[]", {"X-Slotmesh-Affinity-Key": key})
            assert answer.json == where[key]
        wrong = await served.ask("POST", "/places/__call__", b"[]", {"X-Slotmesh-Affinity-Key": "x" * 1025})
        assert (wrong.status, wrong.json["detail"]) == (400, "X-Slotmesh-Affinity-Key: at most 1024 bytes, got 1025")
