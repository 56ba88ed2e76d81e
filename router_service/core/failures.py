"""Every failure that the router's core makes, with its message.

Owner: pure functions; `slotmesh.errors` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from router_service.core.limits.admission import FIRST_RETRY_DELAY_S, jittered
from router_service.core.limits.capacity import KnownReplica
from router_service.core.queueing.run_queues import constraint_of
from router_service.core.runs import RouterRun
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.spec.rules import show

STALE_TABLE_DELAY_S = 1.0
"""By when a newer table may have come."""
UNREACHABLE_DELAY_S = 1.0
"""By when a link may be up again."""
UNAVAILABLE_DELAY_S = 1.0
"""By when replicas may be on their way where none was."""
_MOST_LISTED = 8
"""Names that a message lists."""

CANCELLED = Failure(reason=Reason.CANCELLED, message="the caller took the call back before it was sent")
CANCELLED_AT_REPLICA = Failure(
    reason=Reason.CANCELLED,
    message="the caller took the call back after it was sent to a replica",
    executed=Executed.UNKNOWN,
)
NO_TABLE = Failure(
    reason=Reason.BACKEND_UNAVAILABLE,
    message="the router has no routing table yet: its controller has not been reached, or is on hold and sends none"
    " (`slotmesh status` shows which)",
    retry_delay_s=1.0,
)
PREDECESSOR_FAILED = Failure(
    reason=Reason.PREDECESSOR_FAILED,
    message="a call before it, of the same ordering key and generation, has failed: begin a new generation to go on",
)
NOT_RESUMED = Failure(
    reason=Reason.ROUTER_LOST,
    message="the connection that had sent the call is gone, and calls with streaming do not outlive theirs",
    executed=Executed.UNKNOWN,
)
NOT_ACKNOWLEDGED = Failure(
    reason=Reason.STALE_TABLE,
    message="calls of a session go to replicas of rosters that its client has acknowledged, and the one in force was "
    "not acknowledged in time: send each roster back that the router names (docs/protocol.md)",
    retry_delay_s=1.0,
)
NOT_COVERED = Failure(
    reason=Reason.ROUTER_LOST,
    message="the session moved to this router, which does not know all replicas that may have executed the call: its "
    "routing table is older than that of the router before, or its controller has forgotten them",
    executed=Executed.UNKNOWN,
)
NO_FREE_SLOT = Failure(reason=Reason.NO_SLOT, message="a shadow takes free slots only, and there was none")


def no_slot(run: RouterRun, now: float, why: str = "") -> Failure:
    """No replica has granted a slot in time: because of `why`, or because of the load if it is empty."""
    account, where, way_out = run.account, "", "more replicas, or a higher max_ongoing"
    if (wish := constraint_of(run)) is not None:
        where = (
            f" at {wish.replica_id}" if wish.replica_id else f" elsewhere than at {', '.join(sorted(wish.excluded))}"
        )
        way_out = "other replicas"
    return Failure(
        reason=Reason.NO_SLOT,
        message=(
            f"no slot of {run.endpoint}{where} was free in {now - run.arrived:.3g} s: "
            f"{why or f'allow more time (options.timeout), {way_out}'}"
        ),
        retry_delay_s=account.retry_delay_s(now) if account is not None else FIRST_RETRY_DELAY_S,
        metadata={"endpoint": run.endpoint},
    )


def room_full(backend: str, full: Failure, why: str) -> Failure:
    """Too many reservations wait for certain replicas of the backend, whose queue would answer with `full`."""
    message = f"too many reservations that name replicas wait for {backend}: {why or 'try again later'}"
    return replace(full, message=message)


def no_such_replica(run: RouterRun, replica_id: str) -> Failure:
    """The endpoint of the reservation has no replica of that id."""
    return Failure(
        reason=Reason.REPLICA_GONE,
        message=f"no backend of {run.endpoint} has a replica {show(replica_id)!r}",
        metadata={"endpoint": run.endpoint, "replica_id": replica_id},
    )


def replica_gone(replica_id: str, why: str) -> Failure:
    """The replica that granted the slot cannot be reached."""
    return Failure(
        reason=Reason.REPLICA_GONE,
        message=f"replica {replica_id}, which gave the slot, {why}: reserve another one",
        metadata={"replica_id": replica_id},
    )


def dispatch_lost(replica_id: str, why: str) -> Failure:
    """The replica that granted the slot has ended, and may have executed an earlier request with the same id."""
    return Failure(
        reason=Reason.REPLICA_LOST,
        executed=Executed.UNKNOWN,
        message=(
            f"replica {replica_id}, which gave the slot, {why}: whether it executed an earlier request with this id is "
            "not known"
        ),
        metadata={"replica_id": replica_id},
    )


def replica_not_known(replica_id: str) -> Failure:
    """The table does not name the replica that gave a slot, and nothing proves that it has ended."""
    return Failure(
        reason=Reason.STALE_TABLE,
        message=f"the router's table does not name replica {replica_id}, which gave the slot, nor lists it as "
        "departed: try again, or at another router; the slot may live on until the end of its lease",
        retry_delay_s=STALE_TABLE_DELAY_S,
        metadata={"replica_id": replica_id},
    )


def replica_unreachable(replica_id: str, why: str) -> Failure:
    """The replica that granted the slot may be alive, but the operation was not sent to it."""
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"replica {replica_id}, which gave the slot, {why}; the slot may live on until the end of its lease",
        retry_delay_s=UNREACHABLE_DELAY_S,
        metadata={"replica_id": replica_id},
    )


def may_be_remembered(replica_id: str | None) -> Failure:
    """A call with a request id may have been executed by a replica that cannot be queried. None: it is not known."""
    which = "a replica that is not known to this router" if replica_id is None else f"replica {replica_id}"
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"{which} may have executed a call with this request_id in the last minute, and cannot be queried",
        executed=Executed.UNKNOWN,
        retry_delay_s=UNREACHABLE_DELAY_S,
        metadata={} if replica_id is None else {"replica_id": replica_id},
    )


def slot_may_be_held(replica_id: str) -> Failure:
    """A repeated reservation may have its slot at a replica that has not answered."""
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"replica {replica_id} may hold the slot of this request_id, and has not answered: repeat the request "
        "later, or reserve with another id; the slot is free again when its lease ends",
        retry_delay_s=UNREACHABLE_DELAY_S,
        metadata={"replica_id": replica_id},
    )


def slot_at_too_many(replicas: int, limit: int) -> Failure:
    """A repeated reservation may have its slot at more replicas than are queried."""
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"the slot of this request_id may be held by one of {replicas:,} replicas, and at most {limit:,} are "
        "queried: reserve with another id; the slot is free again when its lease ends",
    )


def too_many_look_ups(*, of_one: bool) -> Failure:
    """No more slots can be looked for now: `of_one` caller, or at all."""
    whose = "of this caller " if of_one else ""
    return Failure(
        reason=Reason.QUEUE_FULL,
        message=f"the slots of too many repeated reservations {whose}are looked for at replicas now; repeat the request"
        " later",
        retry_delay_s=UNREACHABLE_DELAY_S,
    )


def request_differs(request_id: str) -> Failure:
    """The same request id, for something else."""
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=(
            f"request_id: {show(request_id)!r} stands for a reservation with another endpoint, ttl, shard key or "
            "choice of replicas; a repeated id must have the same"
        ),
        metadata={"field": "request_id"},
    )


def misanswered(replica: KnownReplica) -> Failure:
    """The replica has answered a slot operation with what answers another one."""
    return Failure(
        reason=Reason.INTERNAL,
        message=f"replica {replica.replica_id} has answered something else than it was asked",
        executed=Executed.UNKNOWN,
        metadata=_whereabouts(replica),
    )


def listed(names: Iterable[str]) -> str:
    """The first names in the order of the alphabet, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - _MOST_LISTED
    return (", ".join(ordered[:_MOST_LISTED]) or "none yet") + (f" and {more:,} more" if more > 0 else "")


def no_endpoint(name: str, known: Iterable[str], shown: frozenset[str] | None = None) -> Failure:
    """The table does not name the endpoint. `shown`: those that the caller may see; None: all."""
    there_is = listed(each for each in known if shown is None or each in shown)
    return Failure(
        reason=Reason.ENDPOINT_NOT_FOUND,
        message=f"no endpoint is named {show(name)!r}; there is: {there_is}",
        metadata={"endpoint": show(name)},
    )


def unavailable(endpoint: str, why: str, chance: float) -> Failure:
    """No backend of the endpoint's policy can serve, and nothing is on its way. `chance` is uniform in [0, 1)."""
    return Failure(
        reason=Reason.BACKEND_UNAVAILABLE,
        message=f"nothing serves endpoint {endpoint}, and nothing is on its way: {why}",
        retry_delay_s=jittered(UNAVAILABLE_DELAY_S, chance),
        metadata={"endpoint": endpoint},
    )


def uploads_full(size: int, under_way: int, limit: int, retry_delay_s: float) -> Failure:
    """Too many payloads are under way, in chunks, for one more."""
    return Failure(
        reason=Reason.QUEUE_FULL,
        message=(
            f"{under_way} bytes of payloads in chunks are under way at this router, and {size} more pass the limit of "
            f"{limit}: try again later, or raise max_upload_bytes"
        ),
        retry_delay_s=retry_delay_s,
        metadata={"actual": str(under_way + size), "limit": str(limit)},
    )


def uploads_full_of_one(size: int, under_way: int, share: int, retry_delay_s: float) -> Failure:
    """The caller's own payloads that are under way leave no room for one more."""
    return Failure(
        reason=Reason.QUEUE_FULL,
        message=(
            f"{under_way} bytes of this stream's payloads in chunks are under way, and {size} more pass the share of "
            f"{share} that one stream has: wait for their outcomes, or raise max_upload_bytes"
        ),
        retry_delay_s=retry_delay_s,
        metadata={"actual": str(under_way + size), "limit": str(share)},
    )


def upload_stalled(patience_s: float) -> Failure:
    """The payload of a call does not come."""
    return Failure(
        reason=Reason.QUEUE_TIMEOUT,
        message=(
            f"chunk: of the payloads that this stream has announced nothing more has come for {patience_s:g} s; "
            "send their chunks without a pause"
        ),
        metadata={"field": "chunk"},
    )


def deadline_in_queue(run: RouterRun, why: str = "") -> Failure:
    """The deadline passed before anything was sent."""
    return Failure(
        reason=Reason.DEADLINE_IN_QUEUE,
        message=(
            f"the timeout of {run.options.timeout_s:g} s passed before the call was sent to a replica"
            f"{': ' + why if why else ''}"
        ),
        metadata=_queue_of(run),
    )


def too_late(run: RouterRun, left_s: float, why: str) -> Failure:
    """So little of the calls' time is left that no replica would answer in time."""
    return Failure(
        reason=Reason.DEADLINE_IN_QUEUE,
        message=(
            f"after waiting, {left_s:.3g} s were left of the timeout of {run.options.timeout_s:g} s, and replicas take "
            f"longer{': ' + why if why else ''}"
        ),
        metadata=_queue_of(run),
    )


def deadline_running(run: RouterRun, replica: KnownReplica) -> Failure:
    """The deadline passed while a replica had the calls."""
    return Failure(
        reason=Reason.DEADLINE_RUNNING,
        message=f"the timeout of {run.options.timeout_s:g} s passed at replica {replica.replica_id}",
        executed=Executed.UNKNOWN,
        metadata=_whereabouts(replica),
    )


def queue_timeout(run: RouterRun, limit_s: float, why: str) -> Failure:
    """The calls waited for longer than their backend allows."""
    return Failure(
        reason=Reason.QUEUE_TIMEOUT,
        message=(
            f"the call waited for {limit_s:g} s, which is max_queue_time, and no replica took it"
            f"{': ' + why if why else ''}"
        ),
        metadata={"endpoint": run.endpoint, **_queue_of(run)},
    )


def replica_lost(replica: KnownReplica, why: str, *, has_begun: bool = False) -> Failure:
    """The link broke before the replica answered; `has_begun`: the handler of the call is known to have begun."""
    when = "after the handler had begun, before the call had ended" if has_begun else "before it answered"
    return Failure(
        reason=Reason.REPLICA_LOST,
        message=f"the connection to replica {replica.replica_id} broke {when}: {why}",
        executed=Executed.UNKNOWN,
        metadata=_whereabouts(replica),
    )


def replica_ended(replica: KnownReplica) -> Failure:
    """The replica received a request to stop, and cancelled the calls that still ran at the end of its grace period."""
    return Failure(
        reason=Reason.REPLICA_LOST,
        message=(
            f"replica {replica.replica_id} was stopped, and cancelled the call, which still ran at the end of its "
            "grace period: allow more time (graceful_timeout)"
        ),
        executed=Executed.UNKNOWN,
        metadata=_whereabouts(replica),
    )


def not_heard(replica_id: str) -> Failure:
    """The session moved here, and a replica that may have executed the calls cannot be asked."""
    return Failure(
        reason=Reason.REPLICA_LOST,
        message=f"the session moved to this router, and replica {replica_id}, which may have executed the call, "
        "does not say whether it did",
        executed=Executed.UNKNOWN,
        metadata={"replica_id": replica_id},
    )


PASSED = Failure(
    reason=Reason.REPLICA_LOST,
    message="a link was lost while the call was on its way, and later ones of its ordering key have run since",
)
"""No replica has seen the call."""

NOT_READ = Failure(
    reason=Reason.RESULT_EVICTED,
    message="the call was executed; its client did not read, and the router had no room for the result: read always, "
    "or use a session",
    executed=Executed.YES,
)
"""A client without a session does not read its results, and the router's other clients need the memory."""


def result_evicted(replica: KnownReplica) -> Failure:
    """The replica has executed the calls, and keeps the outcome no longer."""
    return Failure(
        reason=Reason.RESULT_EVICTED,
        message=f"replica {replica.replica_id} has executed the call and keeps its outcome no longer",
        executed=Executed.YES,
        metadata=_whereabouts(replica),
    )


def value_too_large(size: int, limit: int, replica: KnownReplica) -> Failure:
    """The handler has yielded a value larger than the caller can take; the replica is asked to stop it."""
    return Failure(
        reason=Reason.PAYLOAD_TOO_LARGE,
        message=f"the handler yielded a value of {size} bytes; at most {limit} bytes come to this caller",
        executed=Executed.YES,
        metadata={"actual": str(size), "limit": str(limit), **_whereabouts(replica)},
    )


def located(failure: Failure, replica: KnownReplica) -> Failure:
    """A replica's own failure, with where it came from."""
    return replace(failure, metadata={**failure.metadata, **_whereabouts(replica)})


def _queue_of(run: RouterRun) -> dict[str, str]:
    """The backend that the run waits for, where it does for one."""
    return {"backend": run.account.backend} if run.account is not None and run.account.backend else {}


def _whereabouts(replica: KnownReplica) -> dict[str, str]:
    return {"backend": replica.backend_name, "replica_id": replica.replica_id}
