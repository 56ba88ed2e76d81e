"""Slots of the asyncio client when routers are lost, and when the mesh is closed."""

from __future__ import annotations

import asyncio
import logging

import pytest

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.slot_service import FakeSlots
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


# -- routers -----------------------------------------------------------------------------------------------------------


async def test_rpcs_go_to_any_router(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect(f"{slots.address},{other.address}") as mesh:
            decode = mesh.endpoint("decode")
            async with decode.reserve(ttl=0.6) as slot, decode.reserve() as unused:
                await slots.stop()
                await other.until(lambda: other.count("RenewSlot") == 2)
                assert await slot.generate(1) == [1]
                assert unused.replica_id == "decode-0"
            assert other.rpcs[-2:] == ["Dispatch", "ReleaseSlot"]
            assert slots.table.states() == ["done", "released"]


@pytest.mark.parametrize("how", ["the rpc breaks", "the router is gone"])
async def test_a_call_whose_router_is_lost_is_not_sent_again(slots: FakeSlots, how: str) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            async with mesh.endpoint("decode").reserve() as slot:
                gate = slots.hold_reply("Dispatch")
                call = slot.generate(1)
                await slots.until(lambda: slots.table.states() == ["running"])
                if how == "the rpc breaks":
                    slots.cut.add("Dispatch")
                    gate.set()
                else:
                    await slots.stop()
                with pytest.raises(slotmesh.RouterLost, match="may have been executed") as caught:
                    await call
            assert caught.value.executed is Executed.UNKNOWN
            assert (slots.count("Dispatch"), other.count("Dispatch")) == (1, 0)


async def test_values_whose_router_is_lost(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            async with mesh.endpoint("decode").options(content_type=OCTET_STREAM).reserve() as slot:
                slots.hold_reply("DispatchStreaming")
                values = slot.generate.stream(b"1")
                assert await anext(values) == b"0"
                await slots.stop()
                with pytest.raises(slotmesh.RouterLost) as caught:
                    await anext(values)
                assert caught.value.executed is Executed.YES
            assert other.count("DispatchStreaming") == 0


async def test_a_reservation_goes_on_at_another_router(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            decode = mesh.endpoint("decode")
            slots.hold("ReserveSlot")
            entering = asyncio.create_task(decode.reserve().__aenter__())
            await slots.until(lambda: slots.count("ReserveSlot") == 1)
            await slots.stop()
            slot = await entering
            assert await slot.generate(1) == [1]
            assert other.rpcs == ["ReserveSlot", "Dispatch"]
            first, second = slots.requests[0], other.requests[0]
            assert first.request_id == second.request_id


async def test_only_requests_without_an_answer_are_counted(slots: FakeSlots) -> None:
    """A router that ends and refuses a reservation holds no slot: the next one has none to look for."""
    async with FakeSlots(slots.table) as second, FakeSlots(slots.table) as third:
        slots.failures["ReserveSlot"] = Failure(reason=Reason.DRAINING, message="the router ends")
        for each in (second, third):
            each.cut.add("ReserveSlot")
        async with slotmesh.connect([each.address for each in (slots, second, third)]) as mesh:
            entering = asyncio.create_task(mesh.endpoint("decode").reserve().__aenter__())
            await slots.until(lambda: min(each.count("ReserveSlot") for each in (slots, second, third)) > 0)
            second.cut.clear()
            third.cut.clear()
            await (await entering).release()
        requests = [it for each in (second, third) for it in each.requests if hasattr(it, "attempt")]
        assert slots.requests[0].attempt == 0
        assert sorted(it.attempt for it in requests) == list(range(len(requests)))


async def test_the_first_router_need_not_be_there(slots: FakeSlots) -> None:
    async with FakeSlots() as gone:
        pass
    async with slotmesh.connect([gone.address, slots.address]) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            assert await slot.generate(1) == [1]


async def test_no_router_at_all(slots: FakeSlots) -> None:
    await slots.stop()
    async with slotmesh.connect(slots.address, connect_timeout=0.2) as mesh:
        with pytest.raises(slotmesh.RouterLost, match=f"no router answered at {slots.address}") as caught:
            async with mesh.endpoint("decode").reserve():
                raise AssertionError
        assert caught.value.executed is Executed.NO


async def test_a_call_that_found_no_router_was_not_executed(slots: FakeSlots) -> None:
    async with slotmesh.connect(slots.address, connect_timeout=0.2) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            await slots.stop()
            # Until gRPC knows, a call goes out on the old connection, and nobody can tell what became of it.
            await wait_until(lambda: not mesh._routers.is_connected(slots.address), what="the end of the connection")
            with pytest.raises(slotmesh.RouterLost) as caught:
                await slot.generate(1)
        assert caught.value.executed is Executed.NO


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_closing_the_mesh_gives_all_back(slots: FakeSlots, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    slots.table.permits["decode"] = 1
    mesh = slotmesh.connect(slots.address)
    decode = mesh.endpoint("decode")
    async with decode.reserve() as slot:
        waiting = asyncio.create_task(decode.reserve().__aenter__())
        await slots.until(lambda: slots.count("ReserveSlot") == 2)
        await mesh.aclose()
        with pytest.raises(slotmesh.CallCancelled, match="closed"):
            await waiting
        with pytest.raises((RuntimeError, slotmesh.SlotUnknown)):
            slot.generate(1)
        await slots.until_free()
    with pytest.raises(RuntimeError, match="closed"):
        async with decode.reserve():
            pass
    assert not caplog.records


async def test_closing_the_mesh_waits_for_calls_in_slots(slots: FakeSlots) -> None:
    gate = slots.hold_reply("Dispatch")
    async with slotmesh.connect(slots.address) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            result = slot.generate(1)
        await slots.until(lambda: slots.table.states() == ["running"])
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert result.done()
    assert await result == [1]


async def test_closing_the_mesh_without_grace_ends_calls_in_slots(slots: FakeSlots) -> None:
    slots.hold_reply("Dispatch")
    async with slotmesh.connect(slots.address) as mesh:
        async with mesh.endpoint("decode").reserve() as slot:
            result = slot.generate(1)
            await slots.until(lambda: slots.table.states() == ["running"])
        await mesh.aclose(0)
    with pytest.raises(slotmesh.CallCancelled) as caught:
        await result
    assert caught.value.executed is Executed.UNKNOWN
    await slots.until_free()
