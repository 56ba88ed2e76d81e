"""The failures that the replica's core makes: why calls are not executed.

Invariant: `executed` is no, except for calls that had started.
"""

from __future__ import annotations

from collections.abc import Iterable

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.names import did_you_mean
from slotmesh.spec.rules import show

CANCELLED = Failure(reason=Reason.CANCELLED, message="taken back before it started")
TAKEN_BACK = Failure(
    reason=Reason.CANCELLED, message="taken back while it ran; it was cancelled", executed=Executed.UNKNOWN
)
OVERDUE = Failure(
    reason=Reason.DEADLINE_RUNNING,
    message="the deadline passed while it ran; it was cancelled",
    executed=Executed.UNKNOWN,
)
LATE = Failure(
    reason=Reason.DEADLINE_RUNNING,
    message="the call ended well, but after its deadline, and its lane stops at failures",
    executed=Executed.YES,
)
"""The call's client may already have received its failure, and relies on it."""
EXPIRED = Failure(reason=Reason.DEADLINE_IN_QUEUE, message="the deadline passed before the call started")
UNHEARD = Failure(
    reason=Reason.BACKEND_UNAVAILABLE,
    message="the router that has sent the call was silent for too long, and the call had not started",
)
STOPPED = Failure(
    reason=Reason.PREDECESSOR_FAILED,
    message="a call before it, of the same ordering key and generation, has failed; reset the lane to go on",
)
DRAINING = Failure(reason=Reason.DRAINING, message="the replica drains and takes no new calls")
CUT_OFF = Failure(
    reason=Reason.DRAINING,
    message="the replica was stopped, and the call still ran when its grace was over; it was cancelled",
    executed=Executed.UNKNOWN,
)
"""For routers, which send an `idempotent` call to another replica, and otherwise report the replica as lost."""
ENDED = Failure(
    reason=Reason.REPLICA_LOST,
    message="the replica was stopped, and the call still ran when its grace was over",
    executed=Executed.UNKNOWN,
)
"""The same for directly connected callers."""
STALE = Failure(
    reason=Reason.STALE_TABLE, message="the replica is not the partition's owner at this epoch: the table is older"
)

FENCED = Failure(
    reason=Reason.SESSION_FENCED, message="the session went on over a newer connection; nothing older starts"
)
OVERTAKEN = Failure(
    reason=Reason.SESSION_FENCED,
    message="the session went on over a newer connection; the outcome is kept for it",
    executed=Executed.UNKNOWN,
)
SENT_AGAIN = Failure(
    reason=Reason.SESSION_FENCED,
    message="the router has sent the call again over a newer stream; its outcome goes there",
    executed=Executed.UNKNOWN,
)
PASSED = Failure(
    reason=Reason.REPLICA_LOST,
    message="a link was lost while the call was on its way, and later ones of its ordering key have run since",
    executed=Executed.UNKNOWN,
)
EVICTED = Failure(
    reason=Reason.RESULT_EVICTED,
    message="the call ended, but its result is no longer kept",
    executed=Executed.YES,
)
REPETITION_CANCELLED = Failure(
    reason=Reason.CANCELLED,
    message="the caller waits no more; the call that had this request_id first may have been executed, or will be",
    executed=Executed.UNKNOWN,
)
NOT_BEGUN = Failure(
    reason=Reason.BACKEND_UNAVAILABLE,
    message="the call that had this request_id first was taken back before it started",
)

SLOT_UNKNOWN = Failure(
    reason=Reason.SLOT_UNKNOWN, message="token: the replica has no such slot, or it ended long ago; reserve another"
)
SLOT_RELEASED = Failure(reason=Reason.SLOT_UNKNOWN, message="token: the slot was given back; reserve another")
SLOT_EXPIRED = Failure(
    reason=Reason.SLOT_EXPIRED, message="token: the lease of the slot has ended; reserve another, or renew in time"
)
HELD_UP = Failure(
    reason=Reason.SLOT_EXPIRED,
    message="token: the router that has sent the call was silent until the lease had ended; reserve another slot",
)
SLOT_USED = Failure(
    reason=Reason.SLOT_USED, message="token: a call was dispatched in this slot before; reserve another for each call"
)

SUPERSEDED = Failure(
    reason=Reason.CANCELLED,
    message="request_id: a newer attempt at this reservation has arrived at another router; that one gets the slot",
)
NOT_RESERVED = Failure(reason=Reason.SLOT_UNKNOWN, message="no slot is reserved here with this request_id")
TOO_MANY_LOOK_UPS = Failure(
    reason=Reason.QUEUE_FULL,
    message="too many reservations were repeated with their request_id in the last minute; repeat this one later",
    retry_delay_s=1.0,
)

SLOT_HELD = Failure(
    reason=Reason.SLOT_USED, message="token: a direct stream holds this slot; reserve another for each other call"
)
SLOT_NOT_HELD = Failure(
    reason=Reason.SLOT_UNKNOWN, message="slot_id: the stream does not hold this slot, or does so no longer"
)
SLOT_BUSY = Failure(
    reason=Reason.BAD_REQUEST,
    message="slot_id: a call runs in this slot; send one at a time, or attach another slot",
    metadata={"field": "slot_id"},
)
SLOT_LAPSED = Failure(
    reason=Reason.SLOT_EXPIRED, message="slot_id: the lease of the slot has ended; reserve another, or renew in time"
)


def slot_of_another(reserved: str, meant: str) -> Failure:
    return Failure(
        reason=Reason.SLOT_UNKNOWN,
        message=f"token: the slot was reserved for endpoint {reserved!r}, not for {show(meant)!r}",
        metadata={"endpoint": reserved},
    )


def bad_slot_number(problem: str) -> Failure:
    return Failure(reason=Reason.BAD_REQUEST, message=f"slot_id: {problem}", metadata={"field": "slot_id"})


def hands_back(failure: Failure) -> bool:
    """Whether the router sends the calls to another replica, so that their caller does not get this failure."""
    return failure is DRAINING or failure is STALE or failure is FENCED


def no_such_method(method: str, offered: Iterable[str]) -> Failure:
    names = sorted(name or "__call__" for name in offered)
    absent = f"the handler has no method {show(method or '__call__')!r}{did_you_mean(method, names)}"
    return Failure(
        reason=Reason.METHOD_NOT_FOUND,
        message=f"{absent}{' It' if absent.endswith('?') else '; it'} has {', '.join(names)}",
        metadata={"field": "options.method", "method": show(method)},
    )


def reservation_differs(request_id: str) -> Failure:
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"request_id: {show(request_id)!r} is the id of another reservation, whose slot lives; choose a new id "
        "for each reservation",
        metadata={"field": "request_id"},
    )


def request_differs(request_id: str) -> Failure:
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"request_id: {show(request_id)!r} is the id of another call; choose a new id for each call",
        metadata={"field": "request_id"},
    )


def too_many_requests(own: int, total: int) -> Failure:
    return Failure(
        reason=Reason.QUEUE_FULL,
        message=(
            f"the replica remembers {own} calls of this caller with a request_id, of {total} in all; it takes more as "
            "these expire"
        ),
        retry_delay_s=1.0,
    )


def no_room(max_ongoing: int, prefetch: int) -> Failure:
    return Failure(
        reason=Reason.QUEUE_FULL,
        message=(
            f"the replica is full: {max_ongoing} calls and slots (max_ongoing) are under way, and {prefetch} "
            "(prefetch) may wait here; routers find a place elsewhere, or wait"
        ),
    )


def too_heavy(weight: float, max_batch_size: int) -> Failure:
    shown = f"{weight:.15g}"
    return Failure(
        reason=Reason.BAD_ARGUMENTS,
        message=(
            f"the call weighs {shown} by the method's batch_size_fn, and a batch at most {max_batch_size} "
            "(max_batch_size): send less in a call"
        ),
        metadata={"weight": shown, "max_batch_size": str(max_batch_size)},
    )


def past_window(here: int, more: int, window: int) -> Failure:
    return Failure(
        reason=Reason.QUEUE_FULL,
        message=f"{here} keyed calls of this router are here; {more} more pass its window of {window}",
    )
