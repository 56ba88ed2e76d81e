"""Leases of members, silent replicas that have fenced themselves, and replicas that an operator may declare ended.

Invariants: a silent member is not a dead one (`transitions` decides that). Only durations are compared, never the
clocks of two machines.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from controller_service.core.observed.state import Observed, ObservedReplica
from controller_service.core.partition_owners import Incarnation


@dataclass(slots=True)
class Leases:
    """Which members have reported, and which have been silent for too long.

    Invariants: a member has one lease or none; `expire` names each silent member once, until it reports again.
    Owner: `shell.members.member_stream.LeaseWatch`. Mutable, since each report changes it; a renewal costs O(1).
    """

    lease_s: float
    """Seconds of silence that are allowed."""
    _reported: dict[str, float] = field(default_factory=dict[str, float])
    """When each member reported last."""
    _checks: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When to look at each member: one entry a member, never later than its deadline."""
    _checked: set[str] = field(default_factory=set[str])
    """Members that have an entry."""

    def renew(self, member: str, now: float) -> None:
        """The member has reported."""
        self._reported[member] = now
        self._check(member, now + self.lease_s)

    def is_renewed(self, member: str, now: float) -> bool:
        """Whether the member has a lease that has not run out."""
        reported_at = self._reported.get(member)
        return reported_at is not None and now < reported_at + self.lease_s

    def end(self, member: str) -> None:
        """The member needs no lease any more."""
        self._reported.pop(member, None)

    def renew_all(self, now: float) -> None:
        """The controller has not read reports for a while: every member gets the time of a lease to report."""
        for member in self._reported:
            self._reported[member] = now

    def expire(self, now: float) -> list[str]:
        """Drops and returns the members that have been silent for too long."""
        silent: list[str] = []
        while self._checks and self._checks[0][0] <= now:
            member = self._pop()
            reported_at = self._reported.get(member)
            if reported_at is None:
                continue
            if reported_at + self.lease_s <= now:
                del self._reported[member]
                silent.append(member)
            else:
                self._check(member, reported_at + self.lease_s)
        return silent

    def next_deadline(self) -> float | None:
        """When to call `expire` next, seconds; None if no member has a lease."""
        while self._checks and self._checks[0][1] not in self._reported:
            self._pop()
        return self._checks[0][0] if self._checks else None

    def _check(self, member: str, at: float) -> None:
        if member not in self._checked:
            self._checked.add(member)
            heapq.heappush(self._checks, (at, member))

    def _pop(self) -> str:
        _, member = heapq.heappop(self._checks)
        self._checked.discard(member)
        return member


DRIFT: Final = 0.02
"""By how much, of a duration, two monotonic clocks may differ: many times what clocks of machines do."""
MARGIN_S: Final = 2.0
"""Added to that: for a process that is killed, and for the second in which an earlier leader may still acknowledge."""


def fenced(observed: Observed, now: float, *, since: float) -> dict[Incarnation, float]:
    """Incarnations that have fenced themselves, and their seconds of silence. Time before `since` does not count.

    A replica that announced `fenced_after_s` ends its process when that time has passed since it sent the newest report
    that was acknowledged. The controller reads a report after it was sent, so the process has ended when that time has
    passed since the controller read the newest one, with a margin for the drift of clocks. Replicas that have
    never been ready are never among them. The end of one that this controller launched is often known sooner, by its
    launcher; on a node that is lost this is the only proof.
    """
    ended = dict[Incarnation, float]()
    for replica in observed.incarnations():
        if replica.gone or replica.ready_at is None or not replica.fenced_after_s:
            continue
        if replica.suspect_since is None:
            continue
        silent_since = replica.suspect_since if replica.silent_since is None else replica.silent_since
        if now - max(silent_since, since) > replica.fenced_after_s * (1 + DRIFT) + MARGIN_S:
            ended[replica.owner] = now - silent_since
    return ended


@dataclass(frozen=True, slots=True)
class Forgettable:
    """What a request to forget a replica comes to.

    A replica that reports, that this controller started, or to which a router has reported a link is never declared
    ended: the first is connected, the second is killed and reaped by its launcher. Unknown is not no: a replica that
    has not had a lease's time to attach since this controller started is not silent yet, and a router that has not
    reported its links may have one. A repeated request finds nothing to do.
    """

    is_known: bool
    """The controller has a record of the replica, or it counts as ended."""
    owners: tuple[Incarnation, ...] = ()
    """The incarnations that count as ended from now on."""
    refusal: str = ""
    """Why none may be forgotten; for a person."""


def find_forgettable(
    observed: Observed,
    ended: Iterable[Incarnation],
    replica_id: str,
    incarnation: str,
    *,
    now: float,
    lease_s: float,
) -> Forgettable:
    """What a request to forget `replica_id` comes to at `now`, monotonic, in seconds.

    `incarnation`: the only one that is meant; empty means all under the id. `ended`: those that count as ended already.
    """

    def reason_of(replica: ObservedReplica) -> str:
        return _connection_of(observed, replica) or _unknown_of(observed, replica, now, lease_s)

    def is_meant(owner: Incarnation) -> bool:
        return owner.replica_id == replica_id and incarnation in ("", owner.incarnation)

    newest = observed.replica(replica_id)
    records = [*observed.unresolved.values(), *([] if newest is None else [newest])]
    meant = [it for it in records if is_meant(it.owner)]
    has_ended = any(map(is_meant, ended)) or (newest is not None and incarnation in newest.retired)
    alive = [it for it in meant if not it.gone]
    silent = [it for it in alive if not reason_of(it)]
    refusal = "" if silent else next(map(reason_of, alive), "")
    return Forgettable(bool(meant) or has_ended, tuple(it.owner for it in silent), refusal)


def _connection_of(observed: Observed, replica: ObservedReplica) -> str:
    """Why the replica has not ended; empty if nothing speaks against it."""
    if replica.launched and not replica.reaped:
        return f"this controller started process {replica.pid}, and ends it itself when it is silent for --dead-after"
    if replica.suspect_since is None:
        return "it reports to this controller: drain it, or stop its process"
    for router in observed.routers.values():
        if replica.owner in router.linked:
            return f"router {router.router_id} has a link to it: stop its process"
    return ""


def _unknown_of(observed: Observed, replica: ObservedReplica, now: float, lease_s: float) -> str:
    """The reason why the end cannot be declared yet, if only something unknown is in the way; empty if nothing is."""
    if replica.named_by is not None and replica.suspect_since is not None:
        left_s = replica.suspect_since + lease_s - now
        if left_s > 0.0:
            return f"this controller is new to it, and it may still attach: repeat the request in {ceil(left_s)} s"
    for router in observed.routers.values():
        if router.reported_at is None:
            return f"router {router.router_id} has not reported its links yet: repeat the request in a few seconds"
        if replica.has_attached and router.may_reach(replica.owner):
            return (
                f"router {router.router_id} links to a part of the replicas, and has not tried to reach this one yet: "
                "repeat the request in a few seconds"
            )
    return ""
