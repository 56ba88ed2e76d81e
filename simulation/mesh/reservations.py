"""Reservations that their callers repeat, at any router, while the earlier request is lost or still waits.

Purpose: a proof that one request id holds at most one slot. The caller keeps each token that reached it, whichever
attempt it answers, and renews all of them: if two leases live, the id has two slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import slotmesh
from simulation.mesh.history import Recorder
from slotmesh.client.slots.lease import SlotLease
from slotmesh.client.slots.slot import Slot
from slotmesh.errors import Failure
from slotmesh.status import to_exception
from slotmesh.v1 import slot_service_pb2

TTL_S: Final = 3.0
WAIT_S: Final = 20.0
Answer = slot_service_pb2.ReserveSlotResponse | Failure


async def call_in_repeated_slot(
    endpoints: Sequence[slotmesh.Endpoint], tag: str, run_s: float, how: str, chance: Random, recorder: Recorder
) -> str:
    """Reserves by two or three attempts, and calls in the slot that the last one got.

    Raises:
        SlotmeshError: the last attempt, or the call, failed.
    """
    asked: list[asyncio.Future[Answer]] = []
    ways = chance.choices(endpoints, k=chance.randint(2, 3))
    endpoint = ways[-1]
    for attempt, way in enumerate(ways):
        asked.append(asyncio.ensure_future(_attempt(way, tag, attempt)))
        if attempt < len(ways) - 1:
            await asyncio.wait(asked[-1:], timeout=chance.choice((0.0, 0.02, 0.1, 0.5)))
            if chance.random() < 0.5:
                asked[-1].cancel()
    last = await asked[-1]
    for each in asked:
        each.cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    slots = {it.slot.token: it.slot for it in answers if isinstance(it, slot_service_pb2.ReserveSlotResponse)}
    living = [token for token in slots if await _lives(endpoint, token)] if len(slots) > 1 else []
    if len(living) > 1:
        recorder.doubled[tag] = [slots[token].replica_id for token in living]
    if isinstance(last, Failure):
        raise to_exception(last)
    _, specs = endpoint.reservation_of({})
    lease = SlotLease(endpoint._slots, "", TTL_S, last.slot)
    try:
        reply: str = await Slot(lease, specs).work(tag, "", run_s, how, b"")
    except BaseException:
        lease.give_back()
        raise
    return reply


async def _attempt(endpoint: slotmesh.Endpoint, tag: str, attempt: int) -> Answer:
    terms, _ = endpoint.reservation_of({"ttl": TTL_S})
    request = terms.to_wire(tag.replace("/", "-"), WAIT_S, attempt)
    return await endpoint._slots.rpcs.once(lambda stub: stub.ReserveSlot(request, timeout=WAIT_S + 2.0))


async def _lives(endpoint: slotmesh.Endpoint, token: str) -> bool:
    request = slot_service_pb2.RenewSlotRequest(token=token)
    request.ttl.FromNanoseconds(round(TTL_S * 1e9))
    renewed: Any = await endpoint._slots.rpcs.once(lambda stub: stub.RenewSlot(request, timeout=2.0))
    return not isinstance(renewed, Failure)
