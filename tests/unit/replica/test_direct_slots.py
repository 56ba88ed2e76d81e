"""Direct slots at each moment in which their caller may leave, and callers that share a request id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from replica_service.convert.slots import Granted
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.shell.links.direct_slots import AwaitedReservation, DirectSlots, ReservationTerms, SlotRequests
from replica_service.shell.slots import ReservationEnd
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure, Reason
from tests.contract.slot_handlers import Handler
from tests.support.fakes.clock import FakeClock
from tests.support.requested import requested
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio

WISH = ReservationTerms("e", 10.0)
ECHO = ReplicaCallOptions(method="echo", content_type=OCTET_STREAM)
FULL = Failure(reason=Reason.QUEUE_FULL, message="full")


@pytest_asyncio.fixture
async def host() -> AsyncIterator[Hosting]:
    async with hosting(Handler) as hosted:
        yield hosted


@pytest.fixture
def direct(host: Hosting) -> DirectSlots:
    return DirectSlots(host.engine, host.clock)


async def reserved(direct: DirectSlots) -> bytes:
    granted = await direct.reserve(WISH, None)
    assert isinstance(granted, Granted)
    return granted.slot.secret


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_slot_is_found_by_its_id_while_the_replica_drains(host: Hosting, direct: DirectSlots) -> None:
    other = DirectSlots(host.engine, host.clock)  # as by a router, which has granted the slot
    granted = await other.reserve(WISH, None, requested("a"))
    host.engine.drain()
    again = await direct.reserve(WISH, None, requested("a"))
    assert isinstance(granted, Granted)
    assert isinstance(again, Granted)
    assert again.slot is granted.slot
    refused = await direct.reserve(WISH, None, requested("b"))
    assert isinstance(refused, Failure)
    assert refused.reason is Reason.DRAINING


# -- leaving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", ["", "a"])
@pytest.mark.parametrize("leaves_first", [True, False])
async def test_granted_just_as_its_caller_leaves(
    host: Hosting, direct: DirectSlots, request_id: str, leaves_first: bool
) -> None:
    """Both happen before the caller's task goes on."""
    held = [await reserved(direct) for _ in range(2)]
    slots = host.engine.scheduler.slots
    task = asyncio.ensure_future(direct.reserve(WISH, None, requested(request_id)))
    await turns(2)
    if leaves_first:
        task.cancel()
    direct.release(held[0])
    if not leaves_first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slots.granted == 3
    # Under a request id it stays for whoever asks again.
    assert slots.reserved == (2 if request_id else 1)
    again = await direct.reserve(WISH, None, requested(request_id))
    assert isinstance(again, Granted)
    assert slots.granted == (3 if request_id else 4)


@pytest.mark.parametrize("granted_first", [True, False])
async def test_granted_just_as_its_time_is_over(host: Hosting, direct: DirectSlots, granted_first: bool) -> None:
    """Both happen before the caller's task goes on: whoever is first, there is one outcome, and nothing is left."""
    held = [await reserved(direct) for _ in range(2)]
    loop, slots = asyncio.get_running_loop(), host.engine.scheduler.slots
    patience_s = 0.005
    task = asyncio.ensure_future(direct.reserve(WISH, patience_s))
    await turns(2)
    over = loop.time() + patience_s
    while loop.time() <= over:
        pass  # the loop is late: its timer is due, and has not fired yet
    while not granted_first and host.engine.scheduler.waiting:
        await turns(1)
    assert not task.done()
    direct.release(held[0])
    answer = await task
    if granted_first:
        assert isinstance(answer, Granted)
    else:
        assert isinstance(answer, Failure)
        assert answer.reason is Reason.NO_SLOT
    assert (slots.granted, slots.reserved) == ((3, 2) if granted_first else (2, 1))
    assert host.engine.scheduler.waiting == 0


async def test_a_caller_may_leave_at_any_moment(host: Hosting, direct: DirectSlots) -> None:
    scheduler = host.engine.scheduler

    async def use_a_slot() -> None:
        secret = await reserved(direct)
        try:
            await direct.dispatch(secret, "e", ECHO, b"x", None, write)
        finally:
            direct.release(secret)

    async def write(payload: bytes, content_type: str) -> None:
        assert (payload, content_type) == (b"x", OCTET_STREAM)
        await asyncio.sleep(0)

    for moment in range(30):
        held = await reserved(direct)
        tasks = [asyncio.ensure_future(use_a_slot()) for _ in range(2)]
        await turns(moment % 10)
        direct.release(held)
        await turns(moment // 3)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.wait_for(host.engine.idle(), 5)
        assert (scheduler.in_use, scheduler.waiting, scheduler.slots.reserved) == (0, 0, 0)
        assert not direct._line._calls
        assert not direct._line._reservations


async def test_a_reader_that_fails_takes_its_call_back(host: Hosting, direct: DirectSlots) -> None:
    async def write(payload: bytes, content_type: str) -> None:
        raise ConnectionError(f"nobody takes {payload!r} as {content_type}")

    counting = ReplicaCallOptions(method="count", content_type=OCTET_STREAM, streaming=True)
    with pytest.raises(ConnectionError):
        await direct.dispatch(await reserved(direct), "e", counting, b"100000", None, write)
    await asyncio.wait_for(host.engine.idle(), 5)
    assert host.handler.closed == 1


# -- counting ----------------------------------------------------------------------------------------------------------


async def test_what_becomes_of_reservations_and_slots_is_counted(host: Hosting, direct: DirectSlots) -> None:
    used, back = await reserved(direct), await reserved(direct)
    assert isinstance(failure := await direct.reserve(WISH, 0.0), Failure)
    assert failure.reason is Reason.NO_SLOT
    waiting = asyncio.ensure_future(direct.reserve(WISH, None))
    await turns(2)
    assert isinstance(failure := await direct.reserve(WISH, None), Failure)
    assert failure.reason is Reason.QUEUE_FULL
    host.engine.drain()
    assert isinstance(failure := await waiting, Failure)
    assert failure.reason is Reason.DRAINING

    async def write(_payload: bytes, _content_type: str) -> None: ...

    for _ in range(2):
        await direct.dispatch(used, "e", ECHO, b"x", None, write)
    direct.release(back)
    outcome = ReservationEnd
    assert host.engine.slots.reservations == {outcome.GRANTED: 2, outcome.REFUSED: 2, outcome.CANCELLED: 1}
    slots = host.engine.scheduler.slots
    assert (slots.reserved, slots.granted, slots.dispatched, slots.released) == (0, 2, 1, 1)
    assert sum(slots.held_times.counts) == 1


# -- request ids -------------------------------------------------------------------------------------------------------


async def test_request_ids_that_are_over_are_forgotten(host: Hosting) -> None:
    requests, clock = SlotRequests(), FakeClock()
    for number in range(10_000):
        reservation = AwaitedReservation(WISH, lambda: None)
        requests.add(f"r{number}", reservation, clock.now())
        assert requests.find(f"r{number}", WISH, clock.now()) is reservation
        reservation.answered(FULL)
        assert requests.find(f"r{number}", WISH, clock.now()) is None
    assert len(requests._by_id) < 200
