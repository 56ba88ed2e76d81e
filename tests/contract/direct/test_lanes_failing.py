"""Direct lanes when things break: each call has one outcome, which is true to what was executed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed
from slotmesh.runtime.channels import server_options
from slotmesh.testing import RunningMesh
from slotmesh.v1 import direct_service_pb2, direct_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc
from tests.contract.direct.lanes_mesh import all_free, open_gates, reserved, schedulers, started
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


async def failure_of(call: asyncio.Future[Any]) -> tuple[str, Executed]:
    with pytest.raises(slotmesh.SlotmeshError) as caught:
        await call
    return caught.value.reason.value, caught.value.executed


async def test_a_call_at_a_replica_that_dies_is_unknown_and_others_go_on_elsewhere(
    mesh: RunningMesh, endpoint: slotmesh.Endpoint
) -> None:
    async with endpoint.direct() as lanes:
        running = lanes.wait(b"lost")
        waiting = [lanes.echo(b"%d" % number) for number in range(3)]
        await wait_until(lambda: started(mesh) == [b"lost"], what="the call runs")
        (victim,) = reserved(mesh)
        await mesh.kill_replica(victim)
        assert await failure_of(running) == ("REPLICA_LOST", Executed.UNKNOWN)
        assert await asyncio.gather(*waiting) == [b"0", b"1", b"2"]
        assert victim not in reserved(mesh)


async def test_an_idempotent_call_runs_once_more_elsewhere(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct() as lanes:
        running = lanes.wait.options(idempotent=True)(b"again")
        behind = lanes.echo(b"behind")
        await wait_until(lambda: started(mesh) == [b"again"], what="the call runs")
        (victim,) = reserved(mesh)
        await mesh.kill_replica(victim)
        await wait_until(lambda: started(mesh) == [b"again"] and victim not in reserved(mesh), what="it runs elsewhere")
        assert not behind.done(), "it keeps its place"
        open_gates(mesh)
        assert await running == b"again"
        assert await behind == b"behind"


async def test_a_replica_that_drains_ends_its_call_and_the_next_one_goes_elsewhere(
    mesh: RunningMesh, endpoint: slotmesh.Endpoint
) -> None:
    async with endpoint.direct() as lanes:
        running = lanes.wait(b"last")
        behind = lanes.echo(b"next")
        await wait_until(lambda: started(mesh) == [b"last"], what="the call runs")
        (leaving,) = reserved(mesh)
        scheduler, handler = schedulers(mesh)[leaving], mesh.instance(leaving)
        draining = asyncio.create_task(mesh.drain_replica(leaving))
        await wait_until(lambda: scheduler.draining, what="it drains")
        handler.gate.set()
        assert await running == b"last"
        assert await behind == b"next"
        await draining
        assert leaving not in reserved(mesh)


async def test_idle_slots_leave_a_replica_that_drains(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct(idle=60) as lanes:
        await lanes.echo(b"a")
        (leaving,) = reserved(mesh)
        await mesh.drain_replica(leaving)
        assert not reserved(mesh)
        assert await lanes.echo(b"b") == b"b"
        assert leaving not in reserved(mesh)


async def test_a_router_that_dies_costs_nothing(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct(ttl=0.3, idle=60) as lanes:
        running = lanes.wait(b"on")
        await wait_until(lambda: started(mesh) == [b"on"], what="the call runs")
        for address in mesh.router_addresses:
            await mesh.kill_router(address)
        open_gates(mesh)
        assert await running == b"on"
        ends = asyncio.get_running_loop().time() + 0.7
        await wait_until(lambda: asyncio.get_running_loop().time() > ends, what="two leases are over")
        assert await lanes.echo(b"still") == b"still"


async def test_timeouts(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct() as lanes:
        running = lanes.wait.options(timeout=2.0)(b"long")
        waiting = lanes.echo.options(timeout=0.2)(b"never")
        assert await failure_of(waiting) == ("DEADLINE_IN_QUEUE", Executed.NO)
        assert await failure_of(running) == ("DEADLINE_RUNNING", Executed.UNKNOWN)
        assert await lanes.echo(b"next") == b"next", "it was cancelled at its replica, and the slot is free"
        assert lanes.held == 1


async def test_cancelled_calls(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    async with endpoint.direct() as lanes:
        running, waiting, last = lanes.wait(b"a"), lanes.wait(b"b"), lanes.echo(b"c")
        await wait_until(lambda: started(mesh) == [b"a"], what="the first one runs")
        assert waiting.cancel()
        assert running.cancel()
        assert await last == b"c"
        assert started(mesh) == [b"a"], "what was not sent never is"
        assert not running.cancel()


async def test_no_slot_to_be_had(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    held = [endpoint.reserve() for _ in range(4)]
    for reservation in held:
        await reservation.__aenter__()
    view = endpoint.options(timeout=0.2)
    async with view.direct() as lanes:
        assert (await failure_of(lanes.echo(b"a")))[1] is Executed.NO
        await held[0].__aexit__(None, None, None)
        assert await lanes.echo.options(timeout=20)(b"b") == b"b"
    for reservation in held[1:]:
        await reservation.__aexit__(None, None, None)


async def test_leaving_with_an_exception_cancels_calls(mesh: RunningMesh, endpoint: slotmesh.Endpoint) -> None:
    lanes = endpoint.direct()
    running, waiting = lanes.wait(b"a"), lanes.echo(b"b")
    await wait_until(lambda: started(mesh) == [b"a"], what="the call runs")
    await lanes.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert await failure_of(running) == ("CANCELLED", Executed.UNKNOWN)
    assert await failure_of(waiting) == ("CANCELLED", Executed.NO)
    await all_free(mesh)


async def test_a_client_that_closes_gives_all_slots_back(mesh: RunningMesh) -> None:
    async with slotmesh.connect(mesh.router_addresses) as client:
        lanes = client.endpoint("e").direct(slots=2, idle=60)
        assert [*await asyncio.gather(lanes.greet("a"), lanes.greet("b"))] == ["hello, a", "hello, b"]
    await all_free(mesh)
    with pytest.raises(RuntimeError, match="closed"):
        lanes.greet("c")


class _Scripted(slot_service_pb2_grpc.SlotServiceServicer):
    """A replica, or what stands for one, that gives slots and knows nothing of direct streams."""

    def __init__(self) -> None:
        self.address = ""
        self.reserved: list[str] = []
        self.released: list[str] = []

    async def ReserveSlot(self, request: Any, context: Any) -> slot_service_pb2.ReserveSlotResponse:
        self.reserved.append(f"t{len(self.reserved)}")
        slot = slot_service_pb2.Slot(token=self.reserved[-1], replica_id="old", replica_address=self.address)
        slot.ttl.CopyFrom(request.ttl)
        return slot_service_pb2.ReserveSlotResponse(slot=slot)

    async def ReleaseSlot(self, request: Any, context: Any) -> slot_service_pb2.ReleaseSlotResponse:
        self.released.append(request.token)
        return slot_service_pb2.ReleaseSlotResponse()

    async def RenewSlot(self, request: Any, context: Any) -> slot_service_pb2.RenewSlotResponse:
        raise NotImplementedError

    async def Dispatch(self, request: Any, context: Any) -> slot_service_pb2.DispatchResponse:
        raise NotImplementedError

    def DispatchStreaming(self, request: Any, context: Any) -> Any:
        raise NotImplementedError


@asynccontextmanager
async def _served(scripted: _Scripted, direct: Any = None) -> AsyncIterator[str]:
    """A scripted replica that runs; its address."""
    server = grpc.aio.server(options=server_options())
    slot_service_pb2_grpc.add_SlotServiceServicer_to_server(scripted, server)
    if direct is not None:
        direct_service_pb2_grpc.add_DirectServiceServicer_to_server(direct, server)
    scripted.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield scripted.address
    finally:
        await server.stop(0)


class _Silent(direct_service_pb2_grpc.DirectServiceServicer):
    """Takes slots and calls, and says nothing more."""

    def __init__(self) -> None:
        self.calls = 0

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        opened = direct_service_pb2.AttachOpened(features=["of-tomorrow"])
        await context.write(direct_service_pb2.AttachResponse(opened=opened))
        while (request := await context.read()) is not grpc.aio.EOF:
            self.calls += request.HasField("call")
            if request.HasField("attach"):
                attached = direct_service_pb2.SlotAttached(slot_id=request.attach.slot_id)
                await context.write(direct_service_pb2.AttachResponse(attached=attached))


async def test_a_replica_that_says_nothing_for_a_whole_lease_is_lost() -> None:
    scripted, silent = _Scripted(), _Silent()
    async with _served(scripted, silent) as address, slotmesh.connect(address) as mesh:
        call = mesh.endpoint("e").direct(ttl=0.3).echo()
        with pytest.raises(slotmesh.ReplicaLost, match=r"answered no renewal for 0\.3 s") as caught:
            await call
        assert caught.value.executed is Executed.UNKNOWN
        assert (silent.calls, caught.value.replica_id) == (1, "old")


async def test_a_block_that_is_cancelled_while_it_is_left_gives_its_slots_back(
    mesh: RunningMesh, endpoint: slotmesh.Endpoint
) -> None:
    inside = asyncio.Event()

    async def block() -> None:
        async with endpoint.direct(idle=60) as lanes:
            call = lanes.wait(b"a")
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
            await wait_until(lambda: started(mesh) == [b"a"], what="the call runs")
            inside.set()

    task = asyncio.create_task(block())
    await within(inside.wait(), "a block that is being left")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    open_gates(mesh)
    await all_free(mesh)


async def test_a_block_is_left_where_the_mesh_is_closed_meanwhile(mesh: RunningMesh) -> None:
    client = slotmesh.connect(mesh.router_addresses, close_grace=5.0)
    lanes = client.endpoint("e").options(content_type=OCTET_STREAM).direct()
    running = lanes.wait(b"a")
    await wait_until(lambda: started(mesh) == [b"a"], what="the call runs")
    leaving = asyncio.create_task(lanes.__aexit__(None, None, None))
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.aclose())
    await asyncio.sleep(0)
    open_gates(mesh)
    assert await running == b"a"
    async with asyncio.timeout(10.0):
        await asyncio.gather(leaving, closing)


async def test_a_call_that_crosses_the_end_of_its_lease_goes_on_in_another_slot(
    mesh: RunningMesh, endpoint: slotmesh.Endpoint
) -> None:
    async with endpoint.direct(ttl=0.5, idle=60) as lanes:
        assert await lanes.echo(b"1") == b"1"
        time.sleep(1.0)  # noqa: ASYNC251 - the application computes, and nothing renews its leases meanwhile
        assert await lanes.echo(b"2") == b"2"
