"""Slots whose caller is cancelled, at each place where it waits: nothing is left held."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from tests.support.fakes.slot_service import FakeSlots
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

Program = Callable[[slotmesh.Mesh], Coroutine[None, None, None]]


@pytest_asyncio.fixture
async def mesh(slots: FakeSlots) -> AsyncIterator[slotmesh.Mesh]:
    async with slotmesh.connect(slots.address) as mesh:
        async with mesh.endpoint("decode").reserve():
            pass  # connected from here on
        slots.rpcs.clear()
        yield mesh


async def program(mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("decode").reserve() as slot:
        await slot.generate(1)


async def unused(mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("decode").reserve():
        pass


async def streaming(mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("decode").options(content_type=OCTET_STREAM).reserve() as slot:
        async for _ in slot.generate.stream(b"1"):
            pass


async def failing(mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("decode").reserve():
        raise ZeroDivisionError


async def both(mesh: slotmesh.Mesh) -> None:
    async with mesh.reserve_all("prefill", "decode") as (prefill, decode):
        await prefill.fill(1)
        await decode.generate(1)


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def round_trip(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    """After it, what this client had cancelled before has been cancelled there, too."""
    slots.table.permits["nothing"] = 0
    with pytest.raises(slotmesh.NoSlot):
        async with mesh.endpoint("nothing").reserve(timeout=0):
            raise AssertionError


def reservation_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if "reserve-decode" in task.get_name()]


def leaves(task: asyncio.Task[slotmesh.Slot]) -> None:
    task.cancel()


# -- the reservation ---------------------------------------------------------------------------------------------------


async def test_while_no_router_is_there(slots: FakeSlots) -> None:
    await slots.stop()
    async with slotmesh.connect(slots.address) as mesh:
        task = asyncio.create_task(program(mesh))
        await wait_until(reservation_tasks)
        await cancelled(task)
        await wait_until(lambda: not reservation_tasks())


async def test_while_the_reservation_waits(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    gate = slots.hold("ReserveSlot")
    task = asyncio.create_task(program(mesh))
    await slots.until(lambda: slots.count("ReserveSlot") == 1)
    await cancelled(task)
    await slots.until(lambda: slots.cancelled == ["ReserveSlot"])
    gate.set()
    await wait_until(lambda: not reservation_tasks())
    first, second = slots.requests[-2:]
    assert first.request_id == second.request_id
    assert second.options.timeout.ToNanoseconds() == 0, "it is withdrawn, and not tried again"
    assert slots.table.states() == ["released"], "that of the fixture"


async def test_while_the_reply_is_under_way(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    """The router has said that there is a slot, and does not hear that nobody has read it."""
    gate = slots.hold_reply("ReserveSlot")
    task = asyncio.create_task(program(mesh))
    await slots.until(lambda: len(slots.table.held()) == 1)
    await cancelled(task)
    await slots.until(lambda: slots.cancelled == ["ReserveSlot"])
    assert len(slots.table.held()) == 1
    gate.set()
    await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "ReserveSlot", "ReleaseSlot"]


async def test_nobody_can_be_asked_whether_there_is_a_slot(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.hold("ReserveSlot")
    task = asyncio.create_task(program(mesh))
    await slots.until(lambda: slots.count("ReserveSlot") == 1)
    await cancelled(task)
    await slots.until(lambda: slots.count("ReserveSlot") == 2)
    await slots.stop()
    await wait_until(lambda: not reservation_tasks())


async def test_between_the_reply_and_the_block(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    gate = slots.hold("ReserveSlot")
    task = asyncio.create_task(program(mesh))
    (waiting,) = await wait_until(reservation_tasks)
    gate.set()
    waiting.add_done_callback(lambda _: task.cancel())  # in the very turn in which the slot is there
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not waiting.cancelled(), "it had the slot"
    await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


async def test_when_the_reply_is_here_and_nobody_has_seen_it(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    """The rpc is done, the task that made it has not run since."""
    gate = slots.hold_reply("ReserveSlot")
    entering = mesh.endpoint("decode").reserve()
    task = asyncio.create_task(entering.__aenter__())
    await slots.until(lambda: len(slots.table.held()) == 1)
    call = entering._reserving._call  # type: ignore[union-attr]
    assert call is not None
    call.add_done_callback(lambda _: leaves(task))
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


async def test_a_timeout_around_the_reservation(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.table.permits["decode"] = 0

    async def timed(bound: asyncio.Timeout) -> None:
        async with bound:
            await program(mesh)

    bound = asyncio.timeout(20.0)
    running = asyncio.create_task(timed(bound))
    await slots.until(lambda: slots.rpcs == ["ReserveSlot"])
    bound.reschedule(0.0)
    with pytest.raises(TimeoutError):
        await running
    await slots.until(lambda: slots.cancelled == ["ReserveSlot"])


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "rpc"), [(program, "Dispatch"), (streaming, "DispatchStreaming")])
async def test_before_a_call_has_reached_its_replica(
    slots: FakeSlots, mesh: slotmesh.Mesh, what: Program, rpc: str
) -> None:
    slots.hold(rpc)
    task = asyncio.create_task(what(mesh))
    await slots.until(lambda: slots.count(rpc) == 1)
    await cancelled(task)
    assert slots.table.states()[-1] == "released", "given back when the block was left"
    await slots.until_free()
    assert rpc in slots.cancelled


@pytest.mark.parametrize(("what", "rpc"), [(program, "Dispatch"), (streaming, "DispatchStreaming")])
async def test_while_a_call_runs(slots: FakeSlots, mesh: slotmesh.Mesh, what: Program, rpc: str) -> None:
    slots.hold_reply(rpc)
    task = asyncio.create_task(what(mesh))
    await slots.until(lambda: slots.table.states()[-1] == "running")
    await cancelled(task)
    await slots.until_free()
    assert slots.table.states()[-1] == "done"
    assert rpc in slots.cancelled


async def test_a_call_that_is_cancelled_before_it_began(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("decode").reserve() as slot:
        result = slot.generate(1)
        result.cancel()
        with pytest.raises(asyncio.CancelledError):
            await result
        await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


async def test_a_call_that_waits_for_a_router(slots: FakeSlots) -> None:
    async with FakeSlots(slots.table) as other:
        async with slotmesh.connect([slots.address, other.address]) as mesh:
            async with mesh.endpoint("decode").reserve() as slot:
                await slots.stop()
                await other.stop()
                result = slot.generate(1)
                await asyncio.sleep(0)
                result.cancel()
                await other.start()
                with pytest.raises(asyncio.CancelledError):
                    await result
            await other.until_free()
            assert other.count("Dispatch") == 0


# -- giving back -------------------------------------------------------------------------------------------------------


async def test_while_the_slot_is_given_back(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    gate = slots.hold("ReleaseSlot")
    task = asyncio.create_task(unused(mesh))
    await slots.until(lambda: slots.count("ReleaseSlot") == 1)
    await cancelled(task)
    await round_trip(slots, mesh)
    assert not slots.cancelled
    gate.set()
    await slots.until_free()
    assert slots.count("ReleaseSlot") == 1, "it went on by itself"


async def test_a_cancellation_in_clean_up_hides_nothing(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    gate = slots.hold("ReleaseSlot")
    task = asyncio.create_task(failing(mesh))
    await slots.until(lambda: slots.count("ReleaseSlot") == 1)
    task.cancel()
    with pytest.raises(ZeroDivisionError):
        await task
    await round_trip(slots, mesh)
    assert not slots.cancelled
    gate.set()
    await slots.until_free()


async def test_a_release_that_is_not_answered_holds_nobody_up(
    slots: FakeSlots, mesh: slotmesh.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.client.slots.lease.RELEASE_S", 0.05)
    slots.hold("ReleaseSlot")
    async with asyncio.timeout(20.0):
        await unused(mesh)
        with pytest.raises(ZeroDivisionError):
            await failing(mesh)


async def test_closing_the_mesh_waits_for_what_is_given_back(slots: FakeSlots) -> None:
    async with slotmesh.connect(slots.address) as mesh:
        gate = slots.hold("ReleaseSlot")
        task = asyncio.create_task(unused(mesh))
        await slots.until(lambda: slots.count("ReleaseSlot") == 1)
        await cancelled(task)
        asyncio.get_running_loop().call_later(0.05, gate.set)
    assert slots.table.states() == ["released"]


# -- anywhere ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [program, unused, streaming, failing, both])
async def test_after_any_number_of_turns(slots: FakeSlots, mesh: slotmesh.Mesh, what: Program) -> None:
    """Wherever that is."""
    for turns in range(0, 90, 3):
        task = asyncio.create_task(what(mesh))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await wait_until(lambda: not any("slotmesh-client-" in each.get_name() for each in asyncio.all_tasks()))
        await slots.until_free()


async def test_many_that_leave_at_any_time(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    """200 programs on four permits, each cut off somewhere."""
    slots.table.permits.update(decode=4, prefill=4)
    draws = random.Random(5)

    async def cut_off(what: Program, after_s: float) -> None:
        try:
            async with asyncio.timeout(after_s):
                await what(mesh)
        except (TimeoutError, ZeroDivisionError):
            pass

    programs = [program, unused, streaming, failing, both]
    await asyncio.gather(*(cut_off(draws.choice(programs), draws.random() * 0.5) for _ in range(200)))
    await wait_until(lambda: not any("slotmesh-client-" in each.get_name() for each in asyncio.all_tasks()))
    await slots.until_free()
    await program(mesh)
    await both(mesh)
