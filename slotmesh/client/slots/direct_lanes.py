"""Direct lanes: calls to replicas themselves, one after another in slots that the client holds.

The `SlotHolder` executes the decisions of the plan: it reserves slots, attaches them to streams, sends calls, and sets
the outcomes of futures. All of it is synchronous except for the reservations.
Invariants: the holder has all state, except the methods by name. Each granted slot is attached to a stream, or given
back; a stream without slots is closed. A call is made when the method is called, not when its result is awaited.
Cancelling its future cancels the call.
Owner: the application; of the holder its lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any, Generic, NamedTuple, Unpack

from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S
from slotmesh.client.calls.call_spec import CallSpec, MethodSignature, payload_of
from slotmesh.client.calls.method_types import OtherT, P, ResultT
from slotmesh.client.calls.named_methods import NamedMethods
from slotmesh.client.calls.options import BadOption, ViewOptions, check_known, check_method_name, checked_seconds
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.direct_link import DirectReplicaLink
from slotmesh.client.slots.direct_plan import (
    DirectCommand,
    DirectPlace,
    DirectPlan,
    Finish,
    GiveBack,
    PlacedCall,
    SendCall,
    TakeCallBack,
    Want,
)
from slotmesh.client.slots.reservations import Reserving
from slotmesh.client.slots.slot import DispatchOptions, in_slot
from slotmesh.client.slots.terms import Terms, terms_of
from slotmesh.codec import DecodeError
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import slot_service_pb2


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
        self._links: list[DirectReplicaLink] = []
        """Those that are not closed."""
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
                self._client.finishing.add(self.finish)
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
        self._close_unused()
        self._client.finishing.discard(self.finish)

    # -- commands --------------------------------------------------------------------------------------------------

    def _settle(self, commands: list[DirectCommand]) -> None:
        """As `_carry_out`, after an event that may leave a link without slots, or change the next deadline."""
        self._carry_out(commands)
        self._close_unused()
        self._set_timer()

    def _carry_out_after_result(self, commands: list[DirectCommand]) -> None:
        """As `_carry_out`, after a call that has succeeded: usually the timer is set already."""
        self._carry_out(commands)
        if self._now() + self._idle_s < self._timer_at:
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
            place.slot.link.detach(place.slot.number)
            self._close_unused()

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
        link.attach(place, outcome)

    # -- within ----------------------------------------------------------------------------------------------------

    def _link_to(self, slot: slot_service_pb2.Slot) -> DirectReplicaLink:
        for link in self._links:
            if link.replica_id == slot.replica_id and not link.is_leaving and not link.is_over:
                return link
        by, ttl_s = self._client.rpcs.dialer, self._terms.ttl_s
        link = DirectReplicaLink(slot, ttl_s, by, self.plan, self._settle, self._carry_out_after_result)
        self._links.append(link)
        return link

    def _close_unused(self) -> None:
        for link in [link for link in self._links if not link.places]:
            self._links.remove(link)
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
        future.set_result(spec.result_of(outcome))
    except DecodeError as error:
        future.set_exception(error)


class DirectOptions(DispatchOptions, total=False):
    """Options in which a call over direct lanes may differ from the view that they were made by."""

    idempotent: bool


class DirectFuture(asyncio.Future[Any]):
    """The result of a call."""

    holder: SlotHolder
    call: PlacedCall

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancels the call: it is not sent any more, or is cancelled at its replica."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.holder.cancel(self.call)
        return cancelled


class DirectMethod(Generic[ResultT, P]):
    """Calls one method over direct lanes. Get it as an attribute: `lanes.classify`."""

    __slots__ = ("_holder", "_spec")

    def __init__(self, holder: SlotHolder, spec: CallSpec) -> None:
        self._holder = holder
        self._spec = spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        """Makes a call; await the result at any time. It runs in the first slot that is free.

        Cancelling the future cancels the call at its replica.

        Raises:
            TypeError: the content type cannot carry the arguments.
            PayloadTooLarge: the arguments do not fit into one message.
            SlotmeshError: from the future: the call failed, and how.
            RuntimeError: the mesh is closed.
        """
        return self.begin(payload_of(self._spec, args, kwargs))

    def options(self, **changes: Unpack[DirectOptions]) -> DirectMethod[ResultT, P]:
        """The same method, with other options: `content_type`, `timeout`, `metadata`, `idempotent`.

        Raises:
            BadRequest: an invalid value. It is a ValueError, too.
            TypeError: an unknown option, or the new content type cannot carry results of the requested type.
        """
        check_known(changes, DirectOptions, "a call over direct lanes has no option")
        return DirectMethod(self._holder, self._spec.but(options=self._spec.options.changed(**changes)))

    def returning(self, result_type: type[OtherT]) -> DirectMethod[OtherT, P]:
        """The same method, with results of this type, as `Method.returning`.

        Raises:
            TypeError: the content type cannot carry this type.
        """
        return DirectMethod(self._holder, self._spec.but(wanted=result_type))

    # -- calls in two steps: `encode` in any thread, the rest on the event loop ----------------------------------------

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises as a call does."""
        return payload_of(self._spec, args, kwargs)

    def begin(self, payload: bytes) -> DirectFuture:
        """Makes a call."""
        future = DirectFuture()
        future.holder = holder = self._holder
        future.call = holder.submit(self._spec, payload, future)
        return future

    def __repr__(self) -> str:
        return f"<slotmesh method {self._spec.endpoint}.{self._spec.method} over direct lanes>"


MAX_SLOTS = 256
"""Slots that direct lanes hold at most."""


class DirectLanes(NamedMethods[DirectMethod[Any]]):
    """Slots of an endpoint's replicas, and calls straight to these: `await lanes.classify(pixels)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. Slots are
    reserved when calls need them, and given back when they are idle, or the block ends.
    """

    def __init__(self, client: SlotClient, view: ViewOptions, terms: Terms, slots: int, idle_s: float) -> None:
        super().__init__()
        self._endpoint = terms.endpoint
        self._view = in_slot(view, is_idempotent=view.idempotent)
        self._holder = SlotHolder(client, terms, slots, idle_s)

    @property
    def held(self) -> int:
        """Slots that are held, or being reserved, now."""
        return len(self._holder.plan.places)

    def _new_method(self, name: str, signature: MethodSignature) -> DirectMethod[Any]:
        check_method_name(name)
        spec = CallSpec(self._endpoint, name, self._view, CallQueue(), signature, CallRpc.ATTACH)
        return DirectMethod(self._holder, spec)

    async def aclose(self) -> None:
        """Gives all slots back. Calls that wait are not sent, calls that run are cancelled."""
        await self._holder.finish(0.0)

    async def __aenter__(self) -> DirectLanes:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Waits until all calls have their outcomes, unless an exception passes; then gives all slots back."""
        await self._holder.finish(inf if error is None else 0.0)

    def __repr__(self) -> str:
        return f"<slotmesh direct lanes of {self._endpoint}>"


def direct_lanes(
    client: SlotClient,
    endpoint: str,
    view: ViewOptions,
    slots: int,
    ttl: float | timedelta = DEFAULT_LEASE_S,
    idle: float | timedelta | None = None,
) -> DirectLanes:
    """Direct lanes of a view of an endpoint. Arguments and errors are those of `Endpoint.direct`."""
    count: Any = slots
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_SLOTS:
        raise BadOption("slots", f"must be an integer from 1 to {MAX_SLOTS}, got {slots!r}")
    terms = terms_of(endpoint, view, {"ttl": ttl})
    idle_s = terms.ttl_s if idle is None else checked_seconds("idle", idle)
    if not idle_s >= 0:
        raise BadOption("idle", f"must be a number of seconds that is not negative, or a timedelta, got {idle!r}")
    return DirectLanes(client, view, terms, slots, idle_s)
