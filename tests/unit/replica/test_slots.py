"""Slots at the engine: waits for the end of the last one return, whichever event brings that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from math import inf

import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from replica_service.convert.slots import Granted, reservation_run, slot_call_options
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.events import DispatchReceived, ReleaseReceived, ReplicaTimePassed, RunsReceived, StampEchoed
from replica_service.core.runs import FRESH_S, ReplicaRun, RouterPeer
from replica_service.shell.links.direct_slots import DirectSlots, ReservationTerms
from slotmesh.calls.slot_tokens import format_token
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import call_pb2
from tests.contract.slot_handlers import Handler
from tests.support.fakes.clock import FakeClock
from tests.unit.replica.hosting import Hosting, RememberingOutbox, hosting, open_link

pytestmark = pytest.mark.asyncio

ECHO = ReplicaCallOptions(method="echo", content_type=OCTET_STREAM)


@pytest_asyncio.fixture
async def host() -> AsyncIterator[Hosting]:
    async with hosting(Handler, clock=FakeClock()) as hosted:
        yield hosted


async def reserved(host: Hosting, lease_s: float = 10.0) -> bytes:
    granted = await DirectSlots(host.engine, host.clock).reserve(ReservationTerms("e", lease_s), None)
    assert isinstance(granted, Granted)
    return granted.slot.secret


async def test_who_tries_the_slot_of_another_is_in_the_audit_log(
    host: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")
    granted = await DirectSlots(host.engine, host.clock).reserve(ReservationTerms("e", 10.0, "client/owner"), None)
    assert isinstance(granted, Granted)
    issuer = replace(host.engine.slots.issuer, replica_id="r-1", incarnation="i-1")
    token = format_token("r-1", "i-1", granted.slot.secret)
    assert issuer.secret_of(token, "client/owner", None) == granted.slot.secret
    failure = issuer.secret_of(token, "client/thief", None)
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.SLOT_UNKNOWN
    (line,) = [record.getMessage() for record in caplog.records if record.name == "slotmesh.audit"]
    assert line.startswith("denied who=client/thief method=none reason=SLOT_UNKNOWN why=the slot is another identity's")
    assert token not in caplog.text


async def parked_in_a_slot(host: Hosting, lease_s: float = 10.0, timeout_s: float = inf) -> RouterPeer:
    """A call was dispatched over a link that is not fresh any more."""
    link, _ = host.engine.open()
    link.outbox = RememberingOutbox()
    assert isinstance(host.clock, FakeClock)
    host.clock.advance(FRESH_S)
    now = host.clock.now()
    host.engine.post(
        DispatchReceived(ReplicaRun(link, 1, [b"x"], ECHO, "e", now, now + timeout_s), await reserved(host, lease_s))
    )
    assert link.parked
    return link


@pytest.mark.parametrize(
    "end",
    [
        lambda host, link: host.engine.cancel(link, [(1, 1)]),
        lambda host, link: host.engine.close(link),
        lambda host, link: host.engine.post(StampEchoed(link, host.clock.now())),
    ],
    ids=["cancelled", "link lost", "it runs"],
)
async def test_a_drain_ends_with_the_last_call_in_a_slot(
    host: Hosting, end: Callable[[Hosting, RouterPeer], None]
) -> None:
    link = await parked_in_a_slot(host)
    host.engine.drain()
    idle = asyncio.ensure_future(host.engine.idle())
    await asyncio.sleep(0)
    assert not idle.done()
    end(host, link)
    await asyncio.wait_for(idle, 5)


@pytest.mark.parametrize(
    ("lease_s", "timeout_s", "ends_after_s", "reason"),
    [
        (10.0, inf, 10.0, Reason.SLOT_EXPIRED),
        (0.5, inf, FRESH_S, Reason.SLOT_EXPIRED),
        (10.0, 4.0, 4.0, Reason.DEADLINE_IN_QUEUE),
    ],
)
async def test_a_call_that_may_not_start_keeps_its_permit_no_longer_than_a_lease(
    host: Hosting, lease_s: float, timeout_s: float, ends_after_s: float, reason: Reason
) -> None:
    """Its router may never be heard of again, and its connection last."""
    assert isinstance(host.clock, FakeClock)
    link, scheduler = await parked_in_a_slot(host, lease_s, timeout_s), host.engine.scheduler
    host.clock.advance(ends_after_s - 0.001)
    host.engine.post(ReplicaTimePassed())
    assert scheduler.in_use == 1
    assert scheduler.next_deadline() == pytest.approx(host.clock.now() + 0.001)
    host.clock.advance(0.002)
    host.engine.post(ReplicaTimePassed())
    assert (scheduler.in_use, scheduler.is_idle, link.parked) == (0, True, [])
    failure = link.outbox.failures_of[1]
    assert (failure.reason, failure.executed) == (reason, Executed.NO)
    host.engine.post(StampEchoed(link, host.clock.now()))
    assert not link.outbox.results_of
    assert scheduler.next_deadline() is None


@pytest.mark.parametrize("end", ["release", "cancel", "configure", "expire"])
async def test_a_router_that_says_no_more_hears_of_its_slot(host: Hosting, end: str) -> None:
    """It has half-closed while its reservation waited."""
    secret = await reserved(host)
    parked = await parked_in_a_slot(host)
    outbox = RememberingOutbox()
    link, _ = open_link(host.engine)
    link.outbox = outbox
    host.engine.post(RunsReceived([reservation_run(link, 1, "e", 10.0, host.clock.now(), float("inf"))]))
    finishing = asyncio.ensure_future(host.engine.finish(link))
    await asyncio.sleep(0)
    assert not outbox.slots_of
    match end:
        case "release":
            host.engine.slots.release(ReleaseReceived(secret))
        case "cancel":
            host.engine.cancel(parked, [(1, 1)])
        case "configure":
            host.engine.configure(max_ongoing=3, prefetch=1)
        case _:
            assert isinstance(host.clock, FakeClock)
            host.clock.advance(10)
            host.engine.post(ReplicaTimePassed())
    await asyncio.wait_for(finishing, 5)
    assert isinstance(outbox.slots_of[1], Granted)


async def test_options_of_calls_in_slots_are_converted_once() -> None:
    """Each comes with its own time left."""
    made = []
    for nanos in (1, 2):
        wire = call_pb2.CallOptions(method="echo", timeout=duration_pb2.Duration(nanos=nanos))
        made.append(slot_call_options(wire))
    assert made[0] is made[1]
