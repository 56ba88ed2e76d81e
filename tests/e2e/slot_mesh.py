"""Steps of tests of slots: reserve at any address, read the metrics of replicas, take all slots.

Invariants: the state of a replica is read at its metrics endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc
from tests.support.mesh import MeshRun
from tests.support.metrics import Metrics, scraped

HANDLER = "tests.e2e.handlers:Workshop"
ENDPOINT = "Workshop"
PERMITS = 16
"""Of each of its replicas."""
REFUSAL_S = 0.25
"""How long one waits for a slot that is not there."""

Slot = slot_service_pb2.Slot


class Client:
    """A client of SlotService at one address."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

    async def reserve(self, ttl_s: float = 10, timeout_s: float = 10, **fields: Any) -> Slot:
        options = call_pb2.CallOptions(timeout=_duration(timeout_s))
        request = slot_service_pb2.ReserveSlotRequest(
            endpoint=ENDPOINT, ttl=_duration(ttl_s), options=options, **fields
        )
        response = await self._stub.ReserveSlot(request)
        return response.slot  # type: ignore[no-any-return]  # stubs of grpc.aio know no types

    async def call(self, slot: Slot, text: str, seconds: float = 0.0) -> bytes:
        options = call_pb2.CallOptions(method="work", content_type="application/json")
        payload = f'["{text}", {seconds}]'.encode()
        request = slot_service_pb2.DispatchRequest(token=slot.token, options=options, payload=payload)
        response = await self._stub.Dispatch(request)
        return response.payload  # type: ignore[no-any-return]  # stubs of grpc.aio know no types

    async def renew(self, slot: Slot) -> Slot:
        response = await self._stub.RenewSlot(slot_service_pb2.RenewSlotRequest(token=slot.token))
        return response.slot  # type: ignore[no-any-return]  # stubs of grpc.aio know no types

    async def release(self, slot: Slot) -> slot_service_pb2.ReleaseSlotResponse:
        request = slot_service_pb2.ReleaseSlotRequest(token=slot.token)
        return await self._stub.ReleaseSlot(request)  # type: ignore[no-any-return]  # stubs know no types


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[Client]:
    async with open_channel(address) as channel:
        yield Client(channel)


async def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """What one replica, or all of them, say at their metrics endpoints."""

    reserved: int = 0
    ongoing: int = 0
    granted: int = 0
    dispatched: int = 0
    released: int = 0
    expired: int = 0

    @property
    def is_idle(self) -> bool:
        return self.reserved == self.ongoing == 0

    @property
    def adds_up(self) -> bool:
        """Each slot has one end."""
        return self.granted == self.reserved + self.dispatched + self.released + self.expired

    def __add__(self, other: SlotCounts) -> SlotCounts:
        return SlotCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


async def counts_of(mesh: MeshRun) -> dict[str, SlotCounts]:
    """What each replica says, by replica id."""
    replicas = (await mesh.members()).replicas
    metrics = await asyncio.gather(*(scraped(it.metrics_address) for it in replicas))
    return {it.replica_id: _counts(said) for it, said in zip(replicas, metrics, strict=True)}


async def total_of(mesh: MeshRun) -> SlotCounts:
    return sum((await counts_of(mesh)).values(), SlotCounts())


async def until_idle(mesh: MeshRun, within_s: float) -> float:
    """Waits until no replica does anything, or holds a slot for anybody; returns how long that took."""
    return await until(mesh, lambda total: total.is_idle, within_s)


async def until(mesh: MeshRun, holds: Callable[[SlotCounts], bool], within_s: float = 5.0) -> float:
    """Waits until this holds of all replicas together; returns how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not holds(now := await total_of(mesh)):
        assert loop.time() < began + within_s, f"not within {within_s} s: {now}"
        await asyncio.sleep(0.02)
    return loop.time() - began


async def assert_all_free(mesh: MeshRun, client: Client) -> float:
    """Every permit of every replica can be reserved at the same time, and then there is none left at any of them.

    Returns how long it took at most to hear that.
    """
    replicas = sorted(await mesh.replica_pids())
    wanted = [replica_id for replica_id in replicas for _ in range(PERMITS)]
    slots = await asyncio.gather(*(client.reserve(timeout_s=15, replica_id=each) for each in wanted))
    assert len({slot.token for slot in slots}) == PERMITS * len(replicas)
    assert [slot.replica_id for slot in slots] == wanted
    assert {slot.ongoing for slot in slots} == {*range(1, PERMITS + 1)}
    for counts in (await counts_of(mesh)).values():
        assert (counts.reserved, counts.ongoing) == (PERMITS, PERMITS)
    refused_s = [await _refused(client, each) for each in ("", *replicas)]
    renewed = await asyncio.gather(*map(client.renew, slots))
    assert min(slot.ttl.ToMilliseconds() for slot in renewed) > 9_000, "nobody else could take one"
    released = await asyncio.gather(*map(client.release, slots))
    assert all(each.max_ongoing == PERMITS for each in released)
    assert sum(each.ongoing == 0 for each in released) == len(replicas), "the last one of each says that all is free"
    assert (await total_of(mesh)).is_idle
    return max(refused_s)


async def _refused(client: Client, replica_id: str) -> float:
    """There is no slot, there or anywhere; returns how long it took to hear that."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    failure = await failure_of(client.reserve(timeout_s=REFUSAL_S, replica_id=replica_id))
    assert (failure.reason, failure.executed) == (Reason.NO_SLOT, Executed.NO)
    took_s = loop.time() - began
    assert took_s < REFUSAL_S + 1.0, "it is told in time"
    return took_s


def _counts(said: Metrics) -> SlotCounts:
    def ended(outcome: str) -> int:
        return int(said.total("slotmesh_replica_slots_total", outcome=outcome))

    return SlotCounts(
        reserved=int(said.total("slotmesh_replica_slots_reserved")),
        ongoing=int(said.total("slotmesh_replica_ongoing")),
        granted=int(said.total("slotmesh_replica_reservations_total", outcome="granted")),
        dispatched=ended("dispatched"),
        released=ended("released"),
        expired=ended("expired"),
    )


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
