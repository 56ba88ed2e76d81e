"""Four routers, each of which links to a part of eight replicas: calls, keys, slots, repeated calls."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
import slotmesh.testing
from router_service.config import RouterSettings
from slotmesh.codec import JSON
from slotmesh.runtime.channels import open_channel
from slotmesh.testing import Backend, RunningMesh, meshes
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

REPLICAS = 8


class Notes:
    """Records what it executes."""

    gate: asyncio.Event

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def note(self, text: str) -> str:
        self.seen.append(text)
        return text

    async def wait(self, text: str) -> str:
        self.seen.append(text)
        await self.gate.wait()
        return text


@pytest_asyncio.fixture
async def mesh(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningMesh]:
    monkeypatch.setattr(meshes, "RouterSettings", partial(RouterSettings, subset_size=2))
    Notes.gate = asyncio.Event()
    async with slotmesh.testing.mesh({"notes": Backend(Notes, num_replicas=REPLICAS)}, routers=4) as mesh:
        await wait_until(lambda: all(links_of(mesh).values()), what="links of all routers")
        yield mesh


def links_of(mesh: RunningMesh) -> dict[str, set[str]]:
    """The replicas that each router has reported a link to, by address."""
    routers = mesh._controller.state.observed.routers.values()
    return {it.address: set(it.linked_replica_ids) if it.links_subset else set() for it in routers}


def seen_by(mesh: RunningMesh) -> dict[str, list[str]]:
    """What each replica has executed."""
    return {name: mesh.instance(name).seen for name in mesh.replica_ids("notes")}


async def test_all_replicas_get_calls_over_the_links_of_routers(mesh: RunningMesh) -> None:
    links = links_of(mesh)
    assert all(len(each) >= 3 for each in links.values())  # more, for a minute after the first routers were alone
    for address, linked in links.items():
        async with slotmesh.connect(address) as client:
            await within(
                asyncio.gather(*(client.endpoint("notes").note(f"{address} {n}") for n in range(100))), "calls"
            )
        got = {name for name, seen in seen_by(mesh).items() if any(each.startswith(address) for each in seen)}
        assert got <= linked
    assert all(seen_by(mesh).values())


async def test_a_key_has_one_owner_whatever_router_is_called(mesh: RunningMesh) -> None:
    keys = [f"k{number}" for number in range(12)]
    for address in mesh.router_addresses:
        async with slotmesh.connect(address) as client:
            for key in keys:
                async with client.endpoint("notes").ordered(key) as lane:
                    for number in range(5):
                        lane.note(f"{key} {address} {number}")
    owners = defaultdict[str, set[str]](set)
    for name, seen in seen_by(mesh).items():
        for each in seen:
            owners[each.split()[0]].add(name)
    assert all(len(owners[key]) == 1 for key in keys)
    for seen in seen_by(mesh).values():
        for key in keys:
            of_key = [each for each in seen if each.split()[0] == key]
            assert of_key in ([], [f"{key} {it} {n}" for it in mesh.router_addresses for n in range(5)])


async def test_keys_go_on_when_their_owner_drains(mesh: RunningMesh) -> None:
    clients = [slotmesh.connect(address) for address in mesh.router_addresses]
    try:
        await within(asyncio.gather(*(it.endpoint("notes").ordered("k").note("1") for it in clients)), "1")
        (owner,) = [name for name, seen in seen_by(mesh).items() if seen]
        await mesh.drain_replica(owner)
        await within(asyncio.gather(*(it.endpoint("notes").ordered("k").note("2") for it in clients)), "2")
        assert sorted(len(seen) for seen in seen_by(mesh).values()) == [0] * (REPLICAS - 1) + [4]
    finally:
        for client in clients:
            await client.aclose()


async def test_a_subset_goes_on_when_one_of_its_replicas_is_killed(mesh: RunningMesh) -> None:
    address, linked = next(iter(links_of(mesh).items()))
    async with slotmesh.connect(address) as client:
        notes = client.endpoint("notes").options(idempotent=True)
        await within(notes.note("before"), "a call")
        killed = min(linked)
        await mesh.kill_replica(killed)
        assert await within(asyncio.gather(*(notes.note(f"{n}") for n in range(50))), "calls")
        await mesh.wait_ready()
        assert killed not in links_of(mesh)[address]
        assert await within(notes.note("after"), "a call")


async def test_a_session_finds_its_call_at_a_replica_of_another_subset(mesh: RunningMesh) -> None:
    async with slotmesh.connect(mesh.router_addresses) as client:
        call = client.endpoint("notes").wait("once")
        await wait_until(lambda: any(seen_by(mesh).values()), what="the call at a replica")
        (name,) = [name for name, seen in seen_by(mesh).items() if seen]
        for address, linked in links_of(mesh).items():
            if name in linked and len(mesh.router_addresses) > 1:
                await mesh.kill_router(address)
        Notes.gate.set()
        assert await within(call, "the outcome") == "once"
        assert sum(map(len, seen_by(mesh).values())) == 1


async def test_a_slot_is_used_over_every_router(mesh: RunningMesh) -> None:
    options = call_pb2.CallOptions(method="note", content_type=JSON)
    tokens: list[str] = []
    for number, address in enumerate(mesh.router_addresses):
        async with open_channel(address) as channel:
            stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
            if not number:
                for _ in range(3):
                    reserved = await stub.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint="notes"), timeout=10)
                    tokens.append(reserved.slot.token)
                continue
            for token in tokens:
                await stub.RenewSlot(slot_service_pb2.RenewSlotRequest(token=token), timeout=10)
            token = tokens.pop()
            request = slot_service_pb2.DispatchRequest(token=token, options=options, payload=b'["in a slot"]')
            assert (await stub.Dispatch(request, timeout=10)).payload == b'"in a slot"'
    assert sum(map(len, seen_by(mesh).values())) == 3


async def test_a_repeated_call_is_executed_once_over_all_routers(mesh: RunningMesh) -> None:
    options = call_pb2.CallOptions(method="note", content_type=JSON)
    for address in mesh.router_addresses:
        async with open_channel(address) as channel:
            stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
            for number in range(10):
                payload = f'["{number}"]'.encode()
                request = router_service_pb2.CallRequest(
                    endpoint="notes", request_id=f"r{number}", options=options, payload=payload
                )
                assert (await stub.Call(request, timeout=10)).payload == f'"{number}"'.encode()
    assert sorted(each for seen in seen_by(mesh).values() for each in seen) == [str(number) for number in range(10)]
