"""What a scrape says of slots: exact on every path, at the metrics endpoints of a replica and of a router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc
from tests.contract.slot_handlers import Handler
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.slots import held
from tests.support.metrics import Metrics, scraped
from tests.support.replicas import RunningReplica, running_replica
from tests.support.router_bench import RouterBench, router_bench
from tests.support.slot_doors import Door, Failed, OpenDoor, Slot, by_frames, directly
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLER = "tests.contract.slot_handlers:Handler"
SHORT = duration_pb2.Duration(nanos=50_000_000)


class Scene:
    """A replica, a way to its slots, and what it says of them."""

    def __init__(self, replica: RunningReplica, door: Door, clock: FakeClock) -> None:
        self.replica = replica
        self.door = door
        self.clock = clock
        assert isinstance(replica.handler, Handler)
        self.handler: Handler = replica.handler

    async def metrics(self) -> Metrics:
        return await scraped(self.replica.app.replica.metrics_address)

    async def load(self) -> tuple[float, float]:
        """Slots that are reserved, and permits that are taken."""
        said = await self.metrics()
        return said.total("slotmesh_replica_slots_reserved"), said.total("slotmesh_replica_ongoing")

    async def fails(self, operation: Awaitable[object], reason: str) -> None:
        with pytest.raises(Failed) as caught:
            await operation
        assert caught.value.told[0] == reason

    async def running(self, token: str, method: str) -> asyncio.Task[list[bytes]]:
        """A call runs in the slot."""

        async def read() -> list[bytes]:
            return [value async for value in self.door.stream(token, b"10000", method=method)]

        reading = asyncio.ensure_future(read())
        await wait_until(lambda: self.handler.started or self.handler.yielded, what="it runs")
        assert await self.load() == (0, 1), "no slot is reserved any more, and its call has the permit"
        return reading

    async def until_free(self) -> None:
        await wait_until(lambda: self.replica.engine.scheduler.is_idle, what="all permits free")


@pytest_asyncio.fixture(params=[by_frames, directly])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    open_door: OpenDoor = request.param
    clock = FakeClock()
    async with running_replica(HANDLER, clock=clock, metrics_port=0, graceful_timeout="200ms") as replica:
        async with open_door(replica) as door:
            scene = Scene(replica, door, clock)
            yield scene
            scene.handler.gate.set()


# -- every path of a slot ----------------------------------------------------------------------------------------------


async def a_call_succeeds(scene: Scene, slot: Slot) -> None:
    assert await scene.door.dispatch(slot.token) == b"x"


async def a_call_fails(scene: Scene, slot: Slot) -> None:
    await scene.fails(scene.door.dispatch(slot.token, method="fail"), "HANDLER_ERROR")


async def a_batch(scene: Scene, slot: Slot) -> None:
    assert await scene.door.dispatch(slot.token, method="upper") == b"X"


async def a_thread(scene: Scene, slot: Slot) -> None:
    assert await scene.door.dispatch(slot.token, method="thread") == b"x"


async def no_such_method(scene: Scene, slot: Slot) -> None:
    await scene.fails(scene.door.dispatch(slot.token, method="nowhere"), "METHOD_NOT_FOUND")


async def a_call_past_its_deadline(scene: Scene, slot: Slot) -> None:
    await scene.fails(scene.door.dispatch(slot.token, timeout_s=0), "DEADLINE_IN_QUEUE")


async def twice(scene: Scene, slot: Slot) -> None:
    await scene.door.dispatch(slot.token)
    await scene.fails(scene.door.dispatch(slot.token), "SLOT_USED")
    await scene.door.release(slot.token)


async def twice_while_it_runs(scene: Scene, slot: Slot) -> None:
    reading = await scene.running(slot.token, "count_slowly")
    await scene.fails(scene.door.dispatch(slot.token), "SLOT_USED")
    assert await scene.load() == (0, 1), "one permit, not two"
    scene.handler.gate.set()
    assert await reading == [b"10000"]


async def values(scene: Scene, slot: Slot) -> None:
    reading = await scene.running(slot.token, "count_slowly")
    scene.handler.gate.set()
    assert await reading == [b"10000"]


async def a_reader_who_leaves(scene: Scene, slot: Slot) -> None:
    (await scene.running(slot.token, "blocks")).cancel()
    await scene.until_free()


async def a_caller_who_leaves(scene: Scene, slot: Slot) -> None:
    (await scene.running(slot.token, "wait")).cancel()
    await scene.until_free()


async def of_another_endpoint_first(scene: Scene, slot: Slot) -> None:
    await scene.fails(scene.door.dispatch(slot.token, endpoint="other"), "SLOT_UNKNOWN")
    assert await scene.load() == (1, 1)
    await scene.door.dispatch(slot.token, endpoint="e")


async def renewed(scene: Scene, slot: Slot) -> None:
    await scene.door.renew(slot.token, 20)
    assert await scene.load() == (1, 1)
    scene.clock.advance(19.999)
    await scene.door.dispatch(slot.token)


async def while_the_replica_drains(scene: Scene, slot: Slot) -> None:
    scene.replica.engine.drain()
    await scene.fails(scene.door.reserve(), "DRAINING")
    assert await scene.load() == (1, 1)
    await scene.door.dispatch(slot.token)


async def given_back(scene: Scene, slot: Slot) -> None:
    for _ in range(2):
        assert await scene.door.release(slot.token) == (0, 2)
    await scene.fails(scene.door.dispatch(slot.token), "SLOT_UNKNOWN")


async def forgotten(scene: Scene, slot: Slot) -> None:
    scene.clock.advance(10)
    for operation in (scene.door.dispatch(slot.token), scene.door.renew(slot.token)):
        await scene.fails(operation, "SLOT_EXPIRED")
    await scene.door.release(slot.token)


async def renewed_for_a_moment(scene: Scene, slot: Slot) -> None:
    await scene.door.renew(slot.token, 0.001)
    scene.clock.advance(0.001)
    await scene.fails(scene.door.dispatch(slot.token), "SLOT_EXPIRED")


PATHS: list[tuple[Callable[[Scene, Slot], Awaitable[None]], str]] = [
    (a_call_succeeds, "dispatched"),
    (a_call_fails, "dispatched"),
    (a_batch, "dispatched"),
    (a_thread, "dispatched"),
    (no_such_method, "dispatched"),
    (a_call_past_its_deadline, "dispatched"),
    (twice, "dispatched"),
    (twice_while_it_runs, "dispatched"),
    (values, "dispatched"),
    (a_reader_who_leaves, "dispatched"),
    (a_caller_who_leaves, "dispatched"),
    (of_another_endpoint_first, "dispatched"),
    (renewed, "dispatched"),
    (while_the_replica_drains, "dispatched"),
    (given_back, "released"),
    (forgotten, "expired"),
    (renewed_for_a_moment, "expired"),
]


@pytest.mark.parametrize(("path", "end"), PATHS, ids=[path.__name__ for path, _ in PATHS])
async def test_one_slot_is_reserved_and_then_none(
    scene: Scene, path: Callable[[Scene, Slot], Awaitable[None]], end: str
) -> None:
    assert await scene.load() == (0, 0)
    slot = await scene.door.reserve()
    assert await scene.load() == (1, 1)
    await path(scene, slot)
    await scene.until_free()
    assert await scene.load() == (0, 0)
    said = await scene.metrics()
    ends = {
        outcome: said.total("slotmesh_replica_slots_total", outcome=outcome)
        for outcome in ("dispatched", "released", "expired")
    }
    assert ends == {"dispatched": 0, "released": 0, "expired": 0, end: 1}
    assert said.total("slotmesh_replica_reservations_total", outcome="granted") == 1
    held_times = said.total("slotmesh_replica_slot_held_time_seconds_count")
    assert held_times == (end == "dispatched"), "the time to the dispatch, once"


async def test_reservations_that_get_nothing_reserve_nothing(scene: Scene) -> None:
    slots = [await scene.door.reserve() for _ in range(2)]
    leaving = asyncio.ensure_future(scene.door.reserve())
    await wait_until(lambda: scene.replica.engine.scheduler.waiting == 1)
    await scene.fails(scene.door.reserve(), "QUEUE_FULL")
    leaving.cancel()
    await wait_until(lambda: scene.replica.engine.scheduler.waiting == 0)
    assert await scene.load() == (2, 2)
    said = await scene.metrics()
    outcomes = {
        outcome: said.total("slotmesh_replica_reservations_total", outcome=outcome)
        for outcome in ("granted", "refused", "cancelled", "timed_out")
    }
    assert outcomes == {"granted": 2, "refused": 1, "cancelled": 1, "timed_out": 0}
    for slot in slots:
        await scene.door.release(slot.token)
    assert await scene.load() == (0, 0)


async def test_the_time_from_reservation_to_dispatch(scene: Scene) -> None:
    for held_s in (0.5, 2.0):
        slot = await scene.door.reserve()
        scene.clock.advance(held_s)
        await scene.door.dispatch(slot.token)
    said = await scene.metrics()
    assert said.total("slotmesh_replica_slot_held_time_seconds_sum") == pytest.approx(2.5)


# -- what a router says ------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench(metrics_port=0) as bench:
        yield bench


async def test_reservations_by_outcome_and_how_long_they_waited(mesh: RouterBench) -> None:
    replica, _ = mesh.replicas
    await mesh.with_slots(1, replica, max_queued_calls=1)

    async def outcomes() -> dict[str, int]:
        said = await scraped(mesh.controller.hellos[0].metrics_address)
        assert said.total("slotmesh_router_failures_total") == 0, "reservations are no calls"
        assert said.total("slotmesh_router_reserve_time_seconds_count", backend="b") == said.total(
            "slotmesh_router_reservations_total", outcome="granted", endpoint="echo"
        )
        names = ("granted", "no_slot", "refused", "cancelled", "failed")
        counted = {name: int(said.total("slotmesh_router_reservations_total", outcome=name)) for name in names}
        return {name: count for name, count in counted.items() if count}

    async with open_channel(mesh.address) as channel:
        stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

        def reserve(endpoint: str = "echo", **options: Any) -> Any:
            return stub.ReserveSlot(
                slot_service_pb2.ReserveSlotRequest(endpoint=endpoint, options=call_pb2.CallOptions(**options))
            )

        async def fails(call: Any) -> None:
            with pytest.raises(grpc.aio.AioRpcError):
                await call

        assert await outcomes() == {}
        slot = (await reserve()).slot
        assert await outcomes() == {"granted": 1}
        await fails(reserve(timeout=SHORT))
        assert await outcomes() == {"granted": 1, "no_slot": 1}
        waiting = reserve()
        await wait_until(lambda: any(load.queued == 1 for load in mesh.controller.reports[-1].loads))
        await fails(reserve())
        assert await outcomes() == {"granted": 1, "no_slot": 1, "refused": 1}
        waiting.cancel()
        await wait_until(lambda: all(load.queued == 0 for load in mesh.controller.reports[-1].loads))
        assert await outcomes() == {"granted": 1, "no_slot": 1, "refused": 1, "cancelled": 1}
        await fails(reserve("nowhere"))
        await stub.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=slot.token))
        replica.slots.reserve = held
        given_up = reserve()
        await wait_until(lambda: replica.slots.held)
        given_up.cancel()
        await wait_until(lambda: any(frame.cancel.runs for frame in replica.frames), what="the replica is told")
        await replica.say(replica.slots.granted(replica.slots.held[0]))
        await wait_until(lambda: replica.slots.kinds[-1] == "release", what="nobody has it")
        assert await outcomes() == {"granted": 1, "no_slot": 1, "refused": 1, "cancelled": 2, "failed": 1}
