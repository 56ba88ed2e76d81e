"""Slots of several endpoints at once, over real gRPC: all or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import slotmesh
from slotmesh.client.slots.reservations import TRY_S
from slotmesh.errors import Failure, Reason
from tests.support.fakes.slot_service import FakeSlots
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


def asked_for(slots: FakeSlots, endpoint: str) -> list[float]:
    """How long each reservation of this endpoint was to wait."""
    return [
        request.options.timeout.ToNanoseconds() / 1e9
        for request in slots.requests
        if hasattr(request, "replica_id") and request.endpoint == endpoint
    ]


async def test_slots_of_several_endpoints(
    slots: FakeSlots, mesh: slotmesh.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.client.slots.reservations.TRY_S", 30.0)  # a busy machine needs one round, too
    view = mesh.endpoint("decode").options(shard_key="user")
    async with mesh.reserve_all("prefill", view, "prefill", ttl=5) as (one, other, third):
        assert [slot.backend for slot in (one, other, third)] == ["prefill-v1", "decode-v1", "prefill-v1"]
        assert await one.fill(1) == [1]
        assert await other.generate(2) == [2]
    assert slots.rpcs == ["ReserveSlot"] * 3 + ["Dispatch"] * 2 + ["ReleaseSlot"]
    assert {request.ttl.seconds for request in slots.requests[:3]} == {5}
    assert {request.options.shard_key for request in slots.requests[:3]} == {"", "user"}
    assert slots.table.states().count("done") == 2


async def test_leaving_gives_all_back(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    async with mesh.reserve_all("prefill", "decode"):
        assert len(slots.table.held()) == 2
    assert slots.table.states() == ["released"] * 2
    with pytest.raises(ZeroDivisionError):
        async with mesh.reserve_all("prefill", "decode"):
            raise ZeroDivisionError
    assert slots.table.states() == ["released"] * 4


async def test_where_the_second_is_full_nothing_is_held(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.table.permits["decode"] = 0
    with pytest.raises(slotmesh.NoSlot) as caught:
        async with mesh.reserve_all("prefill", "decode", timeout=4.0):
            raise AssertionError
    assert caught.value.endpoint == "decode"
    assert not slots.table.held()
    assert slots.table.most_held == {"prefill": 1}
    waits = asked_for(slots, "decode")
    assert waits[0] <= TRY_S < waits[1], "the second time it is waited for"
    assert len(asked_for(slots, "prefill")) == 1, "and nothing else is asked for meanwhile"


async def test_the_scarce_one_is_waited_for_with_nothing_held(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.table.permits.update(prefill=1, decode=1)
    async with mesh.endpoint("decode").reserve() as other:
        entering = asyncio.create_task(mesh.reserve_all("prefill", "decode").__aenter__())
        await slots.until(lambda: len(asked_for(slots, "decode")) == 3)
        async with mesh.endpoint("prefill").reserve(timeout=20):
            pass  # nobody holds it
        assert not entering.done()
        await other.generate(1)
    prefill, decode = await entering
    await prefill.fill(1)
    await decode.generate(1)


async def test_two_that_want_the_same_in_either_order(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.table.permits.update(a=1, b=1)

    async def program(*names: str) -> None:
        async with mesh.reserve_all(*names) as (one, other):
            await one.work(1)
            await other.work(1)

    async with asyncio.timeout(30):
        await asyncio.gather(*(program(*names) for names in [("a", "b"), ("b", "a")] * 5))
    assert slots.table.most_held == {"a": 1, "b": 1}


async def test_a_router_that_stands_still_for_a_try_is_asked_again(
    slots: FakeSlots, mesh: slotmesh.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.client.slots.reservations.TRY_S", 1.0)  # both come, on a busy machine, too
    slots.table.permits.update(prefill=1, decode=1)
    replies = slots.hold_reply("ReserveSlot")
    entering = asyncio.create_task(mesh.reserve_all("prefill", "decode", timeout=60).__aenter__())
    await slots.until(lambda: slots.cancelled.count("ReserveSlot") >= 2)  # their rpcs ran out of time
    replies.set()
    for slot in await entering:
        await slot.work(1)
    await slots.until_free()
    assert slots.table.most_held == {"prefill": 1, "decode": 1}


async def test_a_router_that_does_not_answer_in_time_has_no_slot(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    replies = slots.hold_reply("ReserveSlot")
    with pytest.raises(slotmesh.NoSlot, match="the router has not answered in the time"):
        async with mesh.endpoint("prefill").reserve(timeout=1):
            raise AssertionError
    replies.set()
    await slots.until_free()
    assert slots.table.states() == ["released"]


async def test_one_that_is_not_to_be_had_at_all(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.table.permits["prefill"] = 0
    slots.failures["ReserveSlot"] = Failure(reason=Reason.ENDPOINT_NOT_FOUND, message="no such endpoint")
    with pytest.raises(slotmesh.EndpointNotFound):
        async with mesh.reserve_all("prefill", "nothing"):
            raise AssertionError
    assert slots.count("ReserveSlot") == 2, "at once"


async def test_a_full_queue_is_tried_again_when_it_says(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.failures["ReserveSlot"] = Failure(reason=Reason.QUEUE_FULL, message="full", retry_delay_s=0.2)
    began = asyncio.get_running_loop().time()
    entering = asyncio.create_task(mesh.reserve_all("decode").__aenter__())
    await slots.until(lambda: slots.count("ReserveSlot") == 2)
    assert asyncio.get_running_loop().time() - began >= 0.2
    slots.failures.clear()
    (decode,) = await entering
    await decode.generate(1)


async def test_a_slot_that_is_not_free_is_waited_for_whatever_the_router_advises(
    slots: FakeSlots, mesh: slotmesh.Mesh
) -> None:
    slots.failures["ReserveSlot"] = Failure(reason=Reason.NO_SLOT, message="none", retry_delay_s=60.0)
    entering = asyncio.create_task(mesh.reserve_all("prefill", "decode", timeout=30).__aenter__())
    await slots.until(lambda: slots.count("ReserveSlot") == 3)
    slots.failures.clear()
    prefill, decode = await entering
    await prefill.generate(1)
    await decode.generate(1)


async def test_what_was_not_had_in_time_is_told_with_all_that_was_wanted(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    slots.table.permits["decode"] = 0
    with pytest.raises(slotmesh.NoSlot, match=r"prefill, decode were not free at the same time within 0\.1 s"):
        async with mesh.reserve_all("prefill", "decode", timeout=0.1):
            raise AssertionError
    assert not slots.table.held()


@pytest.mark.parametrize("rpc", ["ReserveSlot", "ReleaseSlot"])
async def test_cancelled_on_the_way_in(slots: FakeSlots, mesh: slotmesh.Mesh, rpc: str) -> None:
    """While one is held and the other one is tried; and while the first one is given back for that."""
    slots.table.permits["decode"] = 0
    gate = slots.hold("ReleaseSlot")
    entering = asyncio.create_task(mesh.reserve_all("prefill", "decode").__aenter__())
    if rpc == "ReserveSlot":
        await slots.until(lambda: slots.count(rpc) >= 2)
    else:
        await slots.until(lambda: slots.count(rpc) == 1)
    entering.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    await slots.until_free()


async def test_cancelled_on_the_way_out(slots: FakeSlots, mesh: slotmesh.Mesh) -> None:
    async def program() -> None:
        async with mesh.reserve_all("prefill", "decode"):
            pass

    gate = slots.hold("ReleaseSlot")
    task = asyncio.create_task(program())
    await slots.until(lambda: slots.count("ReleaseSlot") == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    gate.set()
    await slots.until_free()


async def test_closing_the_mesh_ends_the_wait(slots: FakeSlots) -> None:
    slots.table.permits["decode"] = 0
    mesh = slotmesh.connect(slots.address)
    entering = asyncio.create_task(mesh.reserve_all("prefill", "decode").__aenter__())
    await slots.until(lambda: len(asked_for(slots, "decode")) == 2)
    await mesh.aclose()
    with pytest.raises((slotmesh.CallCancelled, RuntimeError), match=r"the mesh (was|is) closed"):
        await entering
    await slots.until_free()


@pytest.mark.parametrize(
    ("names", "arguments", "error", "says"),
    [
        ((), {}, ValueError, "the name of an endpoint, or several"),
        (("",), {}, ValueError, "must not be empty"),
        (("a",), {"timeout": None}, slotmesh.BadRequest, "timeout must be"),
        (("a",), {"timeout": -1}, slotmesh.BadRequest, "timeout must be"),
        (("a",), {"ttl": 0}, slotmesh.BadRequest, "ttl must be"),
        (("a",), {"shard_key": "x"}, TypeError, "no argument shard_key; there are ttl, timeout"),
    ],
)
async def test_arguments(
    mesh: slotmesh.Mesh, names: tuple[str, ...], arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        mesh.reserve_all(*names, **arguments)


async def test_of_use_once(mesh: slotmesh.Mesh) -> None:
    reservation = mesh.reserve_all("a")
    async with reservation:
        pass
    with pytest.raises(RuntimeError, match="used once"):
        await reservation.__aenter__()
    await wait_until(lambda: not any("slotmesh-client-" in task.get_name() for task in asyncio.all_tasks()))
