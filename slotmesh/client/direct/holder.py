"""Executes the decisions of the plan of direct lanes.

Reserves slots, attaches them to streams, sends calls, and sets the outcomes of futures. All of it is synchronous except
for the reservations.
Invariants: each granted slot is attached to a stream, or given back; a stream without slots is closed.
Owner: the direct lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.direct.link import DirectReplicaLink
from slotmesh.client.direct.places import (
    DirectCommand,
    DirectPlace,
    Finish,
    GiveBack,
    PlacedCall,
    SendCall,
    TakeCallBack,
    Want,
)
from slotmesh.client.direct.plan import DirectPlan
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.lease import SlotLease
from slotmesh.client.slots.reservations import Reserving
from slotmesh.client.slots.terms import Terms
from slotmesh.codec import DecodeError
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import slot_service_pb2


class AttachedSlot(NamedTuple):
    """The slot of a place, attached to the stream to its replica."""

    link: DirectReplicaLink
    number: int
    lease: SlotLease


class CallBody(NamedTuple):
    """The payload, and the future of the caller."""

    spec: CallSpec
    payload: bytes
    future: asyncio.Future[Any]


class SlotHolder:
    """Holds slots for the direct lanes of one view of an endpoint."""

    def __init__(self, client: SlotClient, terms: Terms, slots: int, idle_s: float) -> None:
        self.plan = DirectPlan(slots, idle_s)
        self._idle_s = idle_s
        self._client = client
        self._terms = terms
        self._links: dict[str, DirectReplicaLink] = {}
        """By replica id, those that take slots."""
        self._places: dict[tuple[DirectReplicaLink, int], DirectPlace] = {}
        """Slots that streams hold, or are to hold."""
        self._reserving: dict[DirectPlace, Reserving] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._quiet: asyncio.Event | None = None
        self._do: dict[type[DirectCommand], Callable[[Any], None]] = {
            Want: self._want,
            SendCall: self._send,
            TakeCallBack: self._take_back,
            GiveBack: self._give_back,
            Finish: _finish,
        }

    # -- callers ---------------------------------------------------------------------------------------------------

    def submit(self, spec: CallSpec, payload: bytes, future: asyncio.Future[Any]) -> PlacedCall:
        """Makes a call, whose outcome the future takes. Raises RuntimeError where the mesh is closed."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if not self.plan.places:
            self._client.check_open(spec.endpoint)
            if not self.plan.is_closed:
                self._client.direct.add(self)
        timeout_s, now = spec.options.timeout_s, loop.time()
        deadline = inf if timeout_s is None else now + timeout_s
        call = PlacedCall(CallBody(spec, payload, future), deadline, is_idempotent=spec.options.idempotent)
        self._carry_out(self.plan.call_made(call, now))
        if call.place is None or deadline < self._timer_at:
            self._set_timer()
        return call

    def cancel(self, call: PlacedCall) -> None:
        """Its caller has cancelled it."""
        self._carry_out(self.plan.call_cancelled(call))

    async def finish(self, grace_s: float) -> None:
        """Waits until all calls have their outcomes, at most `grace_s` seconds; then gives all slots back."""
        try:
            if not self.plan.is_quiet and grace_s > 0:
                self._quiet = self._quiet or asyncio.Event()  # the mesh may be closed during another wait
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace_s if grace_s != inf else None):
                        await self._quiet.wait()
        finally:
            self._end()
        while self._closing:
            await asyncio.wait(self._closing)

    def _end(self) -> None:
        """No call is made any more, and all slots go back."""
        self._carry_out(self.plan.close())
        for reserving in self._reserving.values():
            reserving.abandon()
        if self._timer is not None:
            self._timer.cancel()
        for link in list(self._links.values()):
            self._close_if_unused(link)
        self._client.direct.discard(self)

    # -- links -----------------------------------------------------------------------------------------------------

    def slot_attached(self, link: DirectReplicaLink, number: int, failure: Failure | None) -> None:
        place = self._places.get((link, number))
        if place is None:
            return
        if failure is None:
            if link.is_leaving:
                self.plan.place_leaves(place, self._now())
            self._settle(self.plan.place_ready(place, self._now()))
            return
        del self._places[link, number]
        place.slot.lease.call_ended(failure)
        self._settle(self.plan.place_refused(place, failure, self._now(), is_final=False))
        self._close_if_unused(link)

    def slot_detached(self, link: DirectReplicaLink, number: int, failure: Failure) -> None:
        place = self._places.pop((link, number), None)
        if place is not None:
            self._settle(self.plan.places_lost([place], failure, self._now()))
            self._close_if_unused(link)

    def call_answered(self, link: DirectReplicaLink, number: int, outcome: bytes | Failure) -> None:
        place = self._places.get((link, number))
        if place is not None:
            now = self._now()
            self._carry_out(self.plan.answered(place, outcome, now))
            if now + self._idle_s < self._timer_at or isinstance(outcome, Failure):
                self._set_timer()

    def goes_away(self, link: DirectReplicaLink) -> None:
        if self._links.get(link.replica_id) is link:
            del self._links[link.replica_id]
        for place in [place for (of, _), place in self._places.items() if of is link]:
            self._settle(self.plan.place_leaves(place, self._now()))
        self._close_if_unused(link)

    def link_lost(self, link: DirectReplicaLink, failure: Failure) -> None:
        if self._links.get(link.replica_id) is link:
            del self._links[link.replica_id]
        lost = {key: place for key, place in self._places.items() if key[0] is link}
        for key, place in lost.items():
            del self._places[key]
            place.slot.lease.call_ended(cut_off=True)
            if failure.reason is Reason.NOT_IMPLEMENTED:
                self._settle(self.plan.place_refused(place, failure, self._now(), is_final=True))
        if failure.reason is not Reason.NOT_IMPLEMENTED:
            self._settle(self.plan.places_lost(lost.values(), failure, self._now()))
        self._close(link)

    # -- commands --------------------------------------------------------------------------------------------------

    def _settle(self, commands: list[DirectCommand]) -> None:
        """As `_carry_out`, where the time at which to come again may be another one now."""
        self._carry_out(commands)
        self._set_timer()

    def _carry_out(self, commands: list[DirectCommand]) -> None:
        for command in commands:
            self._do[type(command)](command)
        if self._quiet is not None and self.plan.is_quiet:
            self._quiet.set()

    def _send(self, command: SendCall) -> None:
        call, slot = command.call, command.place.slot
        body: CallBody = call.body
        options = body.spec.wire
        if command.waited and call.deadline != inf:
            left_s = max(call.deadline - self._now(), 0.0)
            options = type(options)()
            options.CopyFrom(body.spec.wire)
            options.timeout.FromNanoseconds(round(left_s * 1e9))
        slot.link.call(slot.number, options, body.payload)

    def _take_back(self, command: TakeCallBack) -> None:
        slot = command.place.slot
        slot.link.take_back(slot.number)

    def _give_back(self, command: GiveBack) -> None:
        place = command.place
        if (reserving := self._reserving.pop(place, None)) is not None:
            reserving.abandon()
        elif place.slot is not None:
            link, number, _ = place.slot
            self._places.pop((link, number), None)
            if not link.is_over:
                link.detach(number)
            self._close_if_unused(link)

    def _want(self, command: Want) -> None:
        place = command.place
        try:
            reserving = self._reserving[place] = Reserving(self._client, self._terms)
        except RuntimeError as error:  # the mesh was closed
            closed = Failure(reason=Reason.CANCELLED, message=f"{error}")
            self._settle(self.plan.place_refused(place, closed, self._now(), is_final=True))
            return
        self._client.start(self._attach(place, reserving), name=f"slotmesh-client-hold-{self._terms.endpoint}")

    async def _attach(self, place: DirectPlace, reserving: Reserving) -> None:
        """Waits for the slot of a place, and hands it to the stream to its replica."""
        outcome = await reserving.outcome()
        if self._reserving.pop(place, None) is None:
            return  # abandoned: the reservation gives the slot back
        if isinstance(outcome, Failure):
            self._settle(self.plan.place_refused(place, outcome, self._now(), is_final=True))
            return
        outcome.use()
        try:
            link = self._link_to(outcome.wire)
        except ValueError as error:
            outcome.call_ended(cut_off=True)
            failure = Failure(reason=Reason.BACKEND_UNAVAILABLE, message=f"replica {outcome.wire.replica_id}: {error}")
            self._settle(self.plan.place_refused(place, failure, self._now(), is_final=True))
            return
        number = link.attach(outcome.wire.token, self._terms.endpoint)
        place.slot = AttachedSlot(link, number, outcome)
        self._places[link, number] = place

    # -- within ----------------------------------------------------------------------------------------------------

    def _link_to(self, slot: slot_service_pb2.Slot) -> DirectReplicaLink:
        link = self._links.get(slot.replica_id)
        if link is None:
            by = self._client.rpcs.dialer
            link = self._links[slot.replica_id] = DirectReplicaLink(self, slot, self._terms.ttl_s, by)
        return link

    def _close_if_unused(self, link: DirectReplicaLink) -> None:
        if not link.held and not link.is_over:
            if self._links.get(link.replica_id) is link:
                del self._links[link.replica_id]
            self._close(link)

    def _close(self, link: DirectReplicaLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close(), name="slotmesh-client-close-direct")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _set_timer(self) -> None:
        due = self.plan.next_deadline()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._time_passed)

    def _time_passed(self) -> None:
        self._timer, self._timer_at = None, inf
        self._settle(self.plan.time_passed(self._now()))


def _finish(command: Finish) -> None:
    body: CallBody = command.call.body
    spec, _, future = body
    outcome = command.outcome
    if future.done():
        return
    if isinstance(outcome, Failure):
        future.set_exception(to_exception(outcome, endpoint=spec.endpoint, method=spec.method))
        return
    try:
        future.set_result(outcome if spec.decode is None else spec.decode(outcome))
    except DecodeError as error:
        future.set_exception(spec.undecodable(error))
