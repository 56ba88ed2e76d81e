"""The decisions of direct lanes: which call runs where, which slots are held, and when they are given back. Pure.

Purpose: `method(…, now) -> commands`; the owner executes the commands in order. The plan has no clock and no streams.
Invariants: at most `slots` places; a place runs one call at a time; a call is answered once. A call is sent again only
if its replica has reported that it was not executed, or if it is idempotent, and at most `MAX_ATTEMPTS` times. No place
is idle while a call waits. Calls start in the order in which they were made; one that is to be sent again is the first.
Owner: the direct lanes of one view of an endpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf
from typing import Any, NamedTuple, TypeAlias

from slotmesh.calls.deadline_heap import DeadlineHeap
from slotmesh.errors import Executed, Failure, Reason


@dataclass(eq=False, slots=True, weakref_slot=True)
class PlacedCall:
    """One call. Compared by identity."""

    body: Any
    """The payload and its future. Opaque to the plan."""
    deadline: float = inf
    """Monotonic seconds, exclusive: from then on its caller does not wait for it."""
    is_idempotent: bool = False
    """It may be sent again where its outcome is unknown."""
    is_over: bool = False
    """It has its outcome, or was cancelled by its caller."""
    may_have_run: bool = False
    """It was lost at a replica, and is to be sent again."""
    attempts: int = 0
    """How many times it was sent."""
    place: DirectPlace | None = None
    """Where it was sent to, and has no answer from."""
    alarm: float = inf
    """When the heap reports it as overdue; infinite if it is not watched."""


class PlaceState(Enum):
    """What a place is good for."""

    WANTED = auto()
    """A slot is being reserved, and handed over to a stream."""
    IDLE = auto()
    BUSY = auto()
    """A call was sent to it, and has no answer."""
    GONE = auto()


@dataclass(eq=False, slots=True)
class DirectPlace:
    """A slot that the client holds, or is about to. Compared by identity."""

    state: PlaceState = PlaceState.WANTED
    call: PlacedCall | None = None
    """The one that was sent to it, be it over for its caller."""
    idle_since: float = inf
    """Monotonic seconds; infinite where it is not idle."""
    is_leaving: bool = False
    """Its replica drains: it takes no further call."""
    slot: Any = None
    """The slot, as a stream has it; None until one was reserved. Its owner's, opaque to the plan."""


class Want(NamedTuple):
    """Reserve a slot for the place, and hand it over to a stream."""

    place: DirectPlace


class SendCall(NamedTuple):
    """Send the call to its place."""

    call: PlacedCall
    place: DirectPlace
    waited: bool
    """It was not sent when it was made."""


class TakeCallBack(NamedTuple):
    """Cancel the call at the place. The replica answers it all the same."""

    place: DirectPlace


class GiveBack(NamedTuple):
    """Give the slot of the place back; where none is there yet, whatever comes of it."""

    place: DirectPlace


class Finish(NamedTuple):
    """The caller has the outcome: a payload, or a failure."""

    call: PlacedCall
    outcome: bytes | Failure


DirectCommand: TypeAlias = Want | SendCall | TakeCallBack | GiveBack | Finish

MAX_ATTEMPTS = 8
"""How many times a call is sent at most."""
MAX_STRIKES = 8
"""The number of consecutive slots that may be lost before a call was answered in one of them."""
MAX_WAITING = 65_536
"""Calls that wait for a place at most."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
"""The first pause before a place is requested again after a failure; doubled each time."""

SLOT_IS_LOST = frozenset({Reason.SLOT_EXPIRED, Reason.SLOT_UNKNOWN})
"""The replica has run nothing, and has the slot no longer."""

EXPIRED = Failure(reason=Reason.DEADLINE_IN_QUEUE, message="the timeout passed before a slot was free for the call")
OVERDUE = Failure(
    reason=Reason.DEADLINE_RUNNING,
    message="the timeout passed while the call was at its replica; it was cancelled there",
    executed=Executed.UNKNOWN,
)
CLOSED = Failure(reason=Reason.CANCELLED, message="the direct lanes were closed before the call was sent")
CUT_OFF = Failure(
    reason=Reason.CANCELLED,
    message="the direct lanes were closed while the call was at its replica",
    executed=Executed.UNKNOWN,
)
TOO_MANY = Failure(
    reason=Reason.QUEUE_FULL,
    message=f"{MAX_WAITING} calls wait for a slot already; await some of them, or hold more slots",
)


class DirectPlan:
    """The calls and places of one `DirectLanes`. All times are monotonic seconds."""

    def __init__(self, slots: int, idle_s: float) -> None:
        """`slots`: places at most. `idle_s`: a place without a call for this time is given back."""
        self._slots = slots
        self._idle_s = idle_s
        self._waiting: OrderedDict[PlacedCall, None] = OrderedDict()
        self._idle: dict[DirectPlace, None] = {}
        """The one that ran a call last is the last."""
        self.places: dict[DirectPlace, None] = {}
        """All but those that are gone."""
        self._deadlines: DeadlineHeap[PlacedCall] = DeadlineHeap()
        self._strikes = 0
        """Places that were lost since the last answer."""
        self._refusals = 0
        """Places that were not to be had since the last one that was."""
        self._paused_until = -inf
        """Before this moment no further place is wanted."""
        self.is_closed = False

    # -- calls -----------------------------------------------------------------------------------------------------

    def call_made(self, call: PlacedCall, now: float) -> list[DirectCommand]:
        """A caller wants this."""
        if call.deadline != inf:
            self._deadlines.watch(call.deadline, call)
        if self._idle:
            place, _ = self._idle.popitem()
            return [self._send(call, place, waited=False)]
        if len(self._waiting) >= MAX_WAITING or self.is_closed:
            return [_finish(call, CLOSED if self.is_closed else TOO_MANY)]
        self._waiting[call] = None
        return self._place(now)

    def call_cancelled(self, call: PlacedCall) -> list[DirectCommand]:
        """Its caller wants it no more."""
        if call.is_over:
            return []
        call.is_over = True
        call.alarm = inf
        if call.place is not None:
            return [TakeCallBack(call.place)]
        self._waiting.pop(call, None)
        return self._give_spare_back() if not self._waiting else []

    def answered(self, place: DirectPlace, outcome: bytes | Failure, now: float) -> list[DirectCommand]:
        """The replica has answered the call at this place."""
        call = place.call
        if call is None:
            return []
        place.call = call.place = None
        commands: list[DirectCommand] = []
        if isinstance(outcome, Failure) and _was_refused(outcome):
            self._send_again(call, outcome, commands)
            if outcome.reason in SLOT_IS_LOST:
                self._forget(place)
                self._strike(now)
                return commands + self._place(now)
            place.is_leaving = True
        else:
            self._strikes = 0
            if not call.is_over:
                commands.append(_finish(call, outcome))
        return commands + self._go_on(place, now)

    # -- places ----------------------------------------------------------------------------------------------------

    def place_ready(self, place: DirectPlace, now: float) -> list[DirectCommand]:
        """The slot is a stream's: calls may be sent to it."""
        if place.state is not PlaceState.WANTED:
            return []
        self._refusals = 0
        return self._go_on(place, now)

    def place_refused(self, place: DirectPlace, failure: Failure, now: float, *, is_final: bool) -> list[DirectCommand]:
        """No slot is to be had for the place. `is_final`: trying again is not for here to decide."""
        if place.state is PlaceState.GONE:
            return []
        self._forget(place)
        self._refusals += 1
        self._pause(now, self._refusals)
        if not self.places and (is_final or self._refusals >= MAX_STRIKES):
            return self._fail_waiting(_not_sent(failure))
        return self._place(now)

    def places_lost(self, places: Iterable[DirectPlace], failure: Failure, now: float) -> list[DirectCommand]:
        """Places are gone: all of a stream, or one as its lease is over. `failure`: of calls that were sent to them.

        Calls go on elsewhere only when all of these places are known to be gone.
        """
        lost = [place for place in places if place.state is not PlaceState.GONE]
        if not lost:
            return []
        for place in lost:
            self._forget(place)
        self._strike(now)
        commands: list[DirectCommand] = []
        is_refused = _was_refused(failure)
        for place in reversed(lost):
            call, place.call = place.call, None
            if call is None:
                continue
            call.place = None
            if is_refused or call.is_idempotent:
                call.may_have_run = call.may_have_run or not is_refused
                self._send_again(call, failure, commands)
            elif not call.is_over:
                commands.append(_finish(call, failure))
        if self._strikes >= MAX_STRIKES and not self.places:
            return commands + self._fail_waiting(_not_sent(failure))
        return commands + self._place(now)

    def place_leaves(self, place: DirectPlace, now: float) -> list[DirectCommand]:
        """Its replica drains: it is given back once its call has ended."""
        place.is_leaving = True
        if place.state is not PlaceState.IDLE:
            return []
        return [self._give_back(place), *self._place(now)]

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `time_passed` has something to do; None if nothing waits for time to pass."""
        due = self._deadlines.next_deadline()
        until = inf if due is None else due
        for place in self._idle:
            until = min(until, place.idle_since + self._idle_s)
        if self._waiting and len(self.places) < self._slots and len(self._waiting) > self._wanted:
            until = min(until, self._paused_until)
        return None if until == inf else until

    def time_passed(self, now: float) -> list[DirectCommand]:
        """What is late, idle, or paused for long enough."""
        commands: list[DirectCommand] = []
        for call in self._deadlines.pop_due(now):
            if call.is_over:
                continue
            if call.place is None:
                del self._waiting[call]
                commands.append(_finish(call, EXPIRED))
            else:
                commands += (_finish(call, OVERDUE), TakeCallBack(call.place))
        for place in [each for each in self._idle if each.idle_since + self._idle_s <= now]:
            commands.append(self._give_back(place))
        return commands + (self._place(now) if self._waiting else self._give_spare_back())

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether no call waits, and each that is at a replica has its outcome."""
        return not self._waiting and all(place.call is None or place.call.is_over for place in self.places)

    def close(self) -> list[DirectCommand]:
        """No more calls: those that wait are never sent, those that run are cancelled, all slots go back."""
        self.is_closed = True
        commands = self._fail_waiting(CLOSED)
        for place in list(self.places):
            call, place.call = place.call, None
            if call is not None:
                call.place = None
                commands.append(TakeCallBack(place))
                if not call.is_over:
                    commands.append(_finish(call, CUT_OFF))
            commands.append(self._give_back(place))
        return commands

    def _go_on(self, place: DirectPlace, now: float) -> list[DirectCommand]:
        """The place has no call: it gets the next one, waits for one, or goes back."""
        if place.is_leaving or self.is_closed:
            return [self._give_back(place), *self._place(now)]
        if self._waiting:
            call, _ = self._waiting.popitem(last=False)
            return [self._send(call, place, waited=True)]
        place.state = PlaceState.IDLE
        place.idle_since = now
        self._idle[place] = None
        return []

    def _send(self, call: PlacedCall, place: DirectPlace, *, waited: bool) -> SendCall:
        place.state = PlaceState.BUSY
        place.call = call
        call.place = place
        call.attempts += 1
        return SendCall(call, place, waited)

    def _send_again(self, call: PlacedCall, failure: Failure, commands: list[DirectCommand]) -> None:
        """Queues the call again, before all others, unless it was cancelled or was sent too often."""
        if call.is_over:
            return
        if call.attempts >= MAX_ATTEMPTS or self.is_closed:
            commands.append(_finish(call, failure))
            return
        self._waiting[call] = None
        self._waiting.move_to_end(call, last=False)

    def _place(self, now: float) -> list[DirectCommand]:
        """Sends what waits to idle places, and wants as many others as calls wait for and may be had."""
        commands: list[DirectCommand] = []
        while self._waiting and self._idle:
            call, _ = self._waiting.popitem(last=False)
            place, _ = self._idle.popitem()
            commands.append(self._send(call, place, waited=True))
        wanted = self._wanted
        while len(self._waiting) > wanted and len(self.places) < self._slots and self._paused_until <= now:
            place = DirectPlace()
            self.places[place] = None
            wanted += 1
            commands.append(Want(place))
        return commands

    @property
    def _wanted(self) -> int:
        """Places for which slots are being reserved."""
        return sum(place.state is PlaceState.WANTED for place in self.places)

    def _strike(self, now: float) -> None:
        """A place was lost. Another one is requested immediately, unless this was the second one in a row."""
        self._strikes += 1
        if self._strikes > 1:
            self._pause(now, self._strikes - 1)

    def _pause(self, now: float, times: int) -> None:
        self._paused_until = now + min(FIRST_PAUSE_S * 2 ** (min(times, MAX_STRIKES) - 1), LONGEST_PAUSE_S)

    def _give_spare_back(self) -> list[DirectCommand]:
        """No call waits: slots that are being reserved are not needed."""
        wanted = [place for place in self.places if place.state is PlaceState.WANTED]
        return [self._give_back(place) for place in wanted]

    def _give_back(self, place: DirectPlace) -> GiveBack:
        self._forget(place)
        return GiveBack(place)

    def _forget(self, place: DirectPlace) -> None:
        place.state = PlaceState.GONE
        place.idle_since = inf
        self._idle.pop(place, None)
        self.places.pop(place, None)

    def _fail_waiting(self, failure: Failure) -> list[DirectCommand]:
        waiting, self._waiting = self._waiting, OrderedDict()
        return [_finish(call, failure) for call in waiting]


def _finish(call: PlacedCall, outcome: bytes | Failure) -> Finish:
    call.is_over = True
    call.alarm = inf
    if call.may_have_run and isinstance(outcome, Failure) and outcome.executed is Executed.NO:
        outcome = replace(outcome, executed=Executed.UNKNOWN)
    return Finish(call, outcome)


def _was_refused(failure: Failure) -> bool:
    """Whether the replica gives the call back, which another one may execute."""
    is_elsewhere = failure.reason in SLOT_IS_LOST or failure.reason is Reason.DRAINING
    return is_elsewhere and failure.executed is Executed.NO


def _not_sent(failure: Failure) -> Failure:
    """The same for calls that were never sent."""
    return Failure(reason=failure.reason, message=failure.message, metadata=failure.metadata)
