"""Slots of the synchronous client, over real gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from typing import NoReturn

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.client.sync.client_thread import ClientThread
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.slot_service import FakeSlots

pytestmark = pytest.mark.asyncio


def count(payload: bytes) -> Iterable[bytes | Failure]:
    for number in range(int(payload)):
        yield b"%d" % number


@pytest_asyncio.fixture
async def slots() -> AsyncIterator[FakeSlots]:
    async with FakeSlots() as slots:
        slots.yields = count
        yield slots


@pytest_asyncio.fixture
async def mesh(slots: FakeSlots) -> AsyncIterator[slotmesh.SyncMesh]:
    mesh = slotmesh.connect_sync(slots.address, close_grace=5)
    yield mesh
    await asyncio.to_thread(mesh.close)
    await slots.until_free()


@pytest_asyncio.fixture
async def decode(mesh: slotmesh.SyncMesh) -> slotmesh.SyncEndpoint:
    return (await asyncio.to_thread(mesh.endpoint, "decode")).options(content_type=OCTET_STREAM)


async def test_a_call_in_a_slot(slots: FakeSlots, decode: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        with decode.reserve(ttl=5, replica_id="decode-3") as slot:
            assert (slot.backend, slot.replica_id, slot.ongoing) == ("decode-v1", "decode-3", 1)
            assert slot.replica_address == slots.address
            assert slot.token not in repr(slot)
            assert slot.generate(b"x") == b"x"
        with decode.reserve() as slot:
            assert slot.generate.options(timeout=20).returning(bytes).future(b"x").result(20) == b"x"
        with decode.reserve() as slot:
            assert slot(b"x") == b"x"
        with decode.reserve() as slot:
            assert slot.method("release")(b"x") == b"x"

    await asyncio.to_thread(program)
    assert slots.rpcs == ["ReserveSlot", "Dispatch"] * 4


async def test_leaving_gives_the_slot_back(slots: FakeSlots, decode: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        with decode.reserve():
            pass
        with pytest.raises(ZeroDivisionError), decode.reserve():
            raise ZeroDivisionError
        with decode.reserve() as slot:
            assert slot.release() == slotmesh.ReplicaLoad(ongoing=0, max_ongoing=8)
            with pytest.raises(slotmesh.SlotUnknown, match="given back"):
                slot.generate(b"x")

    await asyncio.to_thread(program)
    assert slots.table.states() == ["released"] * 3
    assert slots.rpcs == ["ReserveSlot", "ReleaseSlot"] * 3


async def test_a_second_call(slots: FakeSlots, decode: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        with decode.reserve() as slot:
            assert slot.generate(b"x") == b"x"
            with pytest.raises(slotmesh.SlotUsed):
                slot.generate(b"x")
            with pytest.raises(slotmesh.SlotUsed):
                slot.generate.future(b"x").result(20)
            with pytest.raises(slotmesh.SlotUsed):
                slot.generate.stream(b"1")

    await asyncio.to_thread(program)
    assert slots.rpcs == ["ReserveSlot", "Dispatch"]


async def test_values(slots: FakeSlots, decode: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        with decode.reserve() as slot:
            assert list(slot.generate.stream(b"500")) == [b"%d" % number for number in range(500)]
        with decode.reserve() as slot:
            values = slot.generate.stream(b"1000000")
            assert next(values) == b"0"
            values.close()

    await asyncio.to_thread(program)
    await slots.until_free()
    assert slots.rpcs == ["ReserveSlot", "DispatchStreaming"] * 2


async def test_the_error_of_a_call(slots: FakeSlots, decode: slotmesh.SyncEndpoint) -> None:
    slots.answer = lambda _: Failure(reason=Reason.HANDLER_ERROR, message="ValueError: odd", executed=Executed.YES)
    slots.failures["ReleaseSlot"] = Failure(reason=Reason.INTERNAL, message="no")

    def program() -> None:
        with pytest.raises(slotmesh.HandlerError, match="odd"), decode.reserve() as slot:
            slot.generate(b"x")
        with pytest.raises(ZeroDivisionError), decode.reserve():
            raise ZeroDivisionError

    await asyncio.to_thread(program)
    slots.table.slots["token-1"].state = "released"


async def test_a_slot_is_renewed_while_its_thread_does_something_else(
    slots: FakeSlots, decode: slotmesh.SyncEndpoint
) -> None:
    go_on = threading.Event()

    def program() -> None:
        with decode.reserve(ttl=0.3) as slot:
            assert go_on.wait(10)
            assert slot.generate(b"x") == b"x"

    running = asyncio.create_task(asyncio.to_thread(program))
    await slots.until(lambda: slots.count("RenewSlot") == 4)
    go_on.set()
    await running


async def test_all_or_none(slots: FakeSlots, mesh: slotmesh.SyncMesh, decode: slotmesh.SyncEndpoint) -> None:
    def program() -> None:
        with mesh.reserve_all("prefill", decode, ttl=5) as (one, other):
            assert (one.backend, other.backend) == ("prefill-v1", "decode-v1")
            assert other.generate(b"x") == b"x"
        slots.table.permits["decode"] = 0
        with pytest.raises(slotmesh.NoSlot), mesh.reserve_all("prefill", "decode", timeout=0.2):
            raise AssertionError
        with pytest.raises(ValueError, match="name of an endpoint"):
            mesh.reserve_all()
        with pytest.raises(slotmesh.BadRequest, match="ttl"):
            mesh.reserve_all("prefill", ttl=0)

    await asyncio.to_thread(program)
    assert not slots.table.held()


async def test_no_slot_in_time_and_arguments(slots: FakeSlots, decode: slotmesh.SyncEndpoint) -> None:
    slots.table.permits["decode"] = 0

    def program() -> None:
        with pytest.raises(slotmesh.NoSlot), decode.reserve(timeout=0.05):
            raise AssertionError
        with pytest.raises(slotmesh.BadRequest, match="ttl must be"):
            decode.reserve(ttl=301)

    await asyncio.to_thread(program)


async def test_a_wait_that_is_interrupted(
    slots: FakeSlots, decode: slotmesh.SyncEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the very moment in which the slot is there, and the thread has not heard of it."""
    outcome = ClientThread.outcome

    def interrupted(*args: object) -> NoReturn:
        outcome(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    def program() -> None:
        reservation = decode.reserve()
        monkeypatch.setattr(ClientThread, "outcome", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reservation.__enter__()

    await asyncio.to_thread(program)
    monkeypatch.undo()
    await slots.until_free()
    assert slots.table.states() == ["released"]


async def test_closing_the_mesh_gives_all_back(slots: FakeSlots) -> None:
    def program() -> None:
        with slotmesh.connect_sync(slots.address) as mesh:
            with mesh.endpoint("decode").reserve() as slot:
                mesh.close()
                with pytest.raises(RuntimeError, match="closed"):
                    slot.generate(1)
            with pytest.raises(RuntimeError, match="closed"), mesh.endpoint("decode").reserve():
                raise AssertionError

    await asyncio.to_thread(program)
    assert slots.table.states() == ["released"]
