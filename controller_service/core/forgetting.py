"""Which incarnations an operator's word may declare ended, where nothing proves their end.

Invariants: one that reports, that this controller started, or to which a router has reported a link is never declared
ended: the first is connected, the second is killed and reaped by its launcher. Unknown is not no: one that has not had
a lease's time to attach since this controller started is not silent yet, and a router that has not reported its links
may have one. A repeated request finds nothing to do.
Owner: `shell.replica_control`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from controller_service.core.observed import Observed, ObservedReplica
from controller_service.core.partitions import Incarnation
from controller_service.core.roster import DepartedIncarnation


@dataclass(frozen=True, slots=True)
class Forgettable:
    """What a request to forget a replica comes to."""

    is_known: bool
    """The controller has a record of the replica, or the roster lists it as departed."""
    owners: tuple[Incarnation, ...] = ()
    """The incarnations that count as ended from now on."""
    refusal: str = ""
    """Why none may be forgotten; for a person."""


def find_forgettable(
    observed: Observed,
    departed: Iterable[DepartedIncarnation],
    replica_id: str,
    incarnation: str,
    *,
    now: float,
    lease_s: float,
) -> Forgettable:
    """`incarnation`: the only one that is meant; empty means all under the id. `now` is monotonic, in seconds."""

    def reason_of(replica: ObservedReplica) -> str:
        return _connection_of(observed, replica) or _unknown_of(observed, replica, now, lease_s)

    def is_meant(owner: Incarnation) -> bool:
        return owner.replica_id == replica_id and incarnation in ("", owner.incarnation)

    newest = observed.replica(replica_id)
    records = [*observed.elders.values(), *([] if newest is None else [newest])]
    meant = [it for it in records if is_meant(it.owner)]
    has_ended = any(is_meant(it.owner) for it in departed) or (newest is not None and incarnation in newest.retired)
    alive = [it for it in meant if not it.gone]
    silent = [it for it in alive if not reason_of(it)]
    refusal = "" if silent else next(map(reason_of, alive), "")
    return Forgettable(bool(meant) or has_ended, tuple(it.owner for it in silent), refusal)


def ended_of(
    observed: Observed, listed: Iterable[Incarnation], replica_id: str, incarnation: str
) -> frozenset[Incarnation]:
    """Those that count as ended already, of the incarnations that the store lists. `incarnation`: as above."""
    return frozenset(
        owner
        for owner in listed
        if owner.replica_id == replica_id
        and incarnation in ("", owner.incarnation)
        and ((known := observed.incarnation(owner)) is None or known.gone)
    )


def _connection_of(observed: Observed, replica: ObservedReplica) -> str:
    """Why the replica has not ended; empty if nothing speaks against it."""
    if replica.launched and not replica.reaped:
        return f"this controller started process {replica.pid}, and ends it itself when it is silent for --dead-after"
    if replica.suspect_since is None:
        return "it reports to this controller: drain it, or stop its process"
    for router in observed.routers.values():
        if router.may_link(replica.owner):
            return f"router {router.router_id} has a link to it: stop its process"
    return ""


def _unknown_of(observed: Observed, replica: ObservedReplica, now: float, lease_s: float) -> str:
    """What is to be known first, where nothing speaks against it; empty if all is known."""
    if replica.brought_by is not None and replica.suspect_since is not None:
        left_s = replica.suspect_since + lease_s - now
        if left_s > 0.0:
            return f"this controller is new to it, and it may still attach: repeat the request in {ceil(left_s)} s"
    for router in observed.routers.values():
        if router.reported_at is None:
            return f"router {router.router_id} has not reported its links yet: repeat the request in a few seconds"
    return ""
