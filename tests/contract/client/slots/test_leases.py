"""Leases of the asyncio client's slots: given back, renewed, not to be had."""

from __future__ import annotations

import asyncio

import pytest

import slotmesh
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.slot_service import FakeSlots
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_leaving_without_a_call_gives_the_slot_back(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve():
        assert slots.table.states() == ["reserved"]
    assert slots.table.states() == ["released"], "before the next statement"
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


async def test_an_exception_gives_the_slot_back_and_passes(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    error = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as caught:
        async with decode.reserve():
            raise error
    assert caught.value is error
    assert slots.table.states() == ["released"]


@pytest.mark.parametrize("what", ["failure", "cut"])
async def test_a_release_that_fails_hides_nothing(slots: FakeSlots, what: str) -> None:
    if what == "failure":
        slots.failures["ReleaseSlot"] = Failure(reason=Reason.INTERNAL, message="no")
    else:
        slots.cut.add("ReleaseSlot")
    async with slotmesh.connect(slots.address, connect_timeout=0.2) as mesh:
        with pytest.raises(ZeroDivisionError):
            async with mesh.endpoint("decode").reserve():
                raise ZeroDivisionError
        async with mesh.endpoint("decode").reserve():
            pass  # nor is it heard where nothing else went wrong: the lease ends by itself


async def test_release_says_how_loaded_the_replica_is(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as other, decode.reserve() as slot:
        assert await slot.release() == slotmesh.ReplicaLoad(ongoing=1, max_ongoing=8)
        assert await slot.release() == slotmesh.ReplicaLoad(ongoing=1, max_ongoing=8), "again: no harm"
        with pytest.raises(slotmesh.SlotUnknown, match="given back"):
            await slot.generate(b"x")
        assert await other.generate(b"x") == b"x"
        assert await other.release() == slotmesh.ReplicaLoad(ongoing=0, max_ongoing=8), "after a call: no effect"
    assert slots.table.states() == ["done", "released"]
    assert slots.count("ReleaseSlot") == 3, "leaving the block adds none"


async def test_release_tells_what_went_wrong(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.failures["ReleaseSlot"] = Failure(reason=Reason.INTERNAL, message="told to")
    async with decode.reserve() as slot:
        with pytest.raises(slotmesh.InternalError, match="told to"):
            await slot.release()
    slots.table.slots[slot.token].state = "released"


async def test_a_slot_is_of_no_use_after_its_block(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve() as unused:
        pass
    async with decode.reserve() as used:
        await used.generate(b"x")
    before = len(slots.rpcs)
    with pytest.raises(slotmesh.SlotUnknown, match="its block was left"):
        unused.generate(b"x")
    with pytest.raises(slotmesh.SlotUnknown, match="its block was left"):
        unused.generate.stream(b"x")
    with pytest.raises(slotmesh.SlotUsed):
        used.generate(b"x")
    assert len(slots.rpcs) == before


async def test_a_reservation_is_of_use_once(decode: slotmesh.Endpoint) -> None:
    reservation = decode.reserve()
    async with reservation:
        with pytest.raises(RuntimeError, match="used once"):
            async with reservation:
                pass


# -- renewal -----------------------------------------------------------------------------------------------------------


def nothing_renews() -> bool:
    """No task is left that renews a lease."""
    return not any("renew" in task.get_name() for task in asyncio.all_tasks())


async def test_a_slot_is_renewed_while_its_block_runs(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve(ttl=0.3) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 4)  # more than one lease later
        assert slots.table.states() == ["reserved"]
        assert await slot.generate(b"x") == b"x"
    assert {request.ttl.nanos for request in slots.requests[1:5]} == {300_000_000}


async def test_renewal_ends_with_the_call(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    gate = slots.hold_reply("Dispatch")
    async with decode.reserve(ttl=0.9) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 2)
        result = slot.generate(b"x")
        await slots.until(lambda: slots.count("Dispatch") == 1)
        await wait_until(nothing_renews)
        renewals = slots.count("RenewSlot")
        gate.set()
        await result
    assert slots.count("RenewSlot") == renewals


async def test_a_short_block_renews_nothing(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    async with decode.reserve(ttl=9.0):
        pass
    await wait_until(nothing_renews)
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"]


@pytest.mark.parametrize("reason", [Reason.SLOT_EXPIRED, Reason.SLOT_UNKNOWN, Reason.SLOT_USED, Reason.REPLICA_GONE])
async def test_a_renewal_that_fails_is_told_at_the_next_use(
    slots: FakeSlots, decode: slotmesh.Endpoint, reason: Reason
) -> None:
    slots.failures["RenewSlot"] = Failure(reason=reason, message="told to")
    async with decode.reserve(ttl=0.1) as slot:
        await wait_until(lambda: slots.count("RenewSlot") == 1)
        await wait_until(nothing_renews)
        with pytest.raises(slotmesh.SlotError) as caught:
            slot.generate(b"x")
        assert caught.value.reason is reason
    assert slots.count("Dispatch") == 0
    slots.table.slots[slot.token].state = "released"


async def test_a_slot_goes_on_whose_renewal_was_granted_unseen(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    """The reply takes longer than the lease that is known here; the slot lives."""
    gate = slots.hold_reply("RenewSlot")
    async with decode.reserve(ttl=1.5) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 2)
        gate.set()
        await slots.until(lambda: slots.count("RenewSlot") == 6)
        assert slots.table.states() == ["reserved"]
        assert await slot.generate(b"x") == b"x"


async def test_a_renewal_that_got_lost_is_tried_again(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.failures["RenewSlot"] = Failure(reason=Reason.INTERNAL, message="told to")
    async with decode.reserve(ttl=3.0) as slot:
        await slots.until(lambda: slots.count("RenewSlot") == 1)
        slots.failures.clear()
        await slots.until(lambda: slots.count("RenewSlot") >= 2)
        assert await slot.generate(b"x") == b"x"


# -- no slot -----------------------------------------------------------------------------------------------------------


async def test_no_slot_in_time(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.table.permits["decode"] = 1
    async with decode.reserve() as held:
        with pytest.raises(slotmesh.NoSlot) as caught:
            async with decode.reserve(timeout=0.05):
                raise AssertionError
        assert (caught.value.endpoint, caught.value.executed) == ("decode", Executed.NO)
        assert await held.generate(b"x") == b"x"
    async with decode.reserve(timeout=20):
        pass


async def test_a_reservation_waits_its_turn(slots: FakeSlots, decode: slotmesh.Endpoint) -> None:
    slots.table.permits["decode"] = 1

    async def program() -> None:
        async with decode.reserve() as slot:
            await slot.generate(b"x")

    await asyncio.gather(*(program() for _ in range(20)))
    assert slots.table.most_held["decode"] == 1
