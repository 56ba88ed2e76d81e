"""Replicas in groups: those that have not attached here, those of a rollout, and those with outdated settings.

Purpose: replicas that a table or the store names, and that have not attached here, may be alive and serve, so they stay
in the roster and keep their partitions until they attach, or are proven to have ended. They are named by a router's
table of an earlier generation (`adoption`), and by the store of a controller that starts again (`restored`).
Invariants: a restored roster is the roster of the store: no replica leaves it because a controller was away, and none
that was launched is launched again before it had the time to come back.
Owner: the reconcile loop and the composition root, which hand the result to `shell.mesh_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired.handler_code import fixed_of, template_of
from controller_service.core.desired.state import Desired
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.roster import ListedIncarnation
from slotmesh.spec.devices import difference
from slotmesh.spec.environment import process_difference
from slotmesh.spec.model import Backend

RETURN_WITHIN_S: Final = 10.0
"""In place of a silent replica that an earlier run of this controller has launched, none is started before this: until
then it may attach. It stays an owner, and listed, until it is proven to have ended."""


def restored(desired: Desired, *, generation: str, launches: bool, now: float) -> Observed:
    """What is known at the start of a controller that has its store: the replicas of the roster.

    `launches`: whether this controller starts replicas, and so counts those that it has started before.
    Where owners that an earlier generation named have not got everything anew yet, all give up first what they have,
    as they would have done had the controller not ended in between.
    """
    is_inheriting = any(ownership.inherited for ownership in desired.ownership.values())
    records = (
        unattached(
            member,
            (generation, desired.roster.revision),
            must_fence_through=max(1, desired.epoch_floor) if is_inheriting else 0,
            now=now,
        )
        for member in sorted(desired.roster.members, key=lambda it: it.is_unresolved)
    )
    return with_all_unattached(
        Observed(), (record if launches else replace(record, template="", fixed="") for record in records)
    )


def is_counted(replica: ObservedReplica, now: float) -> bool:
    """Launched here, or by an earlier run of this controller: then it has some time to come back."""
    if replica.launched or not replica.template:
        return replica.launched
    return replica.suspect_since is None or now < replica.suspect_since + RETURN_WITHIN_S


def missed_within_s(replicas: Iterable[ObservedReplica], now: float) -> float | None:
    """When the first of those that have not come back counts no more, seconds; None if all have."""
    since = (it.suspect_since for it in replicas if it.template and not it.launched)
    left = (at + RETURN_WITHIN_S - now for at in since if at is not None)
    return min((left_s for left_s in left if left_s > 0.0), default=None)


def unattached(
    member: ListedIncarnation, named_by: tuple[str, int], *, must_fence_through: int, now: float
) -> ObservedReplica:
    """A candidate for calls as before; suspect, since it has not reported."""
    return ObservedReplica(
        replica_id=member.owner.replica_id,
        incarnation=member.owner.incarnation,
        backend=member.backend,
        state=ReplicaState.DRAINING if member.draining else ReplicaState.READY,
        started_at=now,
        ready_at=now,
        suspect_since=now,
        address=member.address,
        max_ongoing=member.max_ongoing,
        process=member.process,
        template=member.template,
        fixed=member.fixed,
        named_by=named_by,
        must_fence_through=must_fence_through,
        fenced_after_s=member.fenced_after_s,
        pod_uid=member.pod_uid,
        devices=member.devices,
        rank=member.rank,
        zone=member.zone,
    )


def with_all_unattached(observed: Observed, records: Iterable[ObservedReplica]) -> Observed:
    """With these records, in this order, taken over together: there may be thousands.

    Each stands beside the record of another incarnation of its id, unless that has ended.
    """
    put: dict[str, ObservedReplica] = {}
    unresolved: list[ObservedReplica] = []
    for record in records:
        known = put.get(record.replica_id) or observed.replica(record.replica_id)
        if known is None:
            put[record.replica_id] = record
        elif known.launched and not known.incarnation and known.process and known.process == record.process:
            # It was found running: the table knows more of the same process.
            put[record.replica_id] = replace(
                record, pid=known.pid, launched=True, template=known.template, fixed=known.fixed
            )
        elif known.is_over:
            put[record.replica_id] = replace(record, retired=known.retired).having_replaced(known.incarnation)
        else:
            unresolved.append(record)
    return observed.with_replicas(put.values()).with_unresolved(unresolved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroups:
    """The replicas of a backend, by the facts that a rollout needs.

    A replica that stays is either current or outdated. One that has ended, was asked to, or is being killed, is
    neither: it is `ending` until its process was reaped, since it holds memory or a GPU for that long. Replicas that
    this controller neither started nor can replace are in no group.
    """

    current: tuple[ObservedReplica, ...] = ()
    """They run the present settings, well, as far as is known."""
    outdated: tuple[ObservedReplica, ...] = ()
    """They run other settings, or are unhealthy: others should replace them."""
    sick: int = 0
    """How many of these run the present settings, and are unhealthy."""
    ending: tuple[ObservedReplica, ...] = ()
    """They will end, or have, and their processes are still there."""


def group_replicas(replicas: Iterable[ObservedReplica], backend: Backend | None, now: float) -> ReplicaGroups:
    """`backend` has the present settings; None: it was deleted, and all are outdated."""
    template, fixed = ("", "") if backend is None else (template_of(backend), fixed_of(backend))
    current: list[ObservedReplica] = []
    outdated: list[ObservedReplica] = []
    ending: list[ObservedReplica] = []
    sick = 0
    for replica in replicas:
        is_new = backend is not None and runs_settings(replica, template, fixed)
        if not replica.gone and is_counted(replica, now) and _stays(replica):
            (current if is_new and not replica.is_unhealthy else outdated).append(replica)
            sick += is_new and replica.is_unhealthy
        elif replica.launched and not replica.reaped:
            ending.append(replica)
    return ReplicaGroups(current=tuple(current), outdated=tuple(outdated), sick=sick, ending=tuple(ending))


def runs_settings(replica: ObservedReplica, template: str, fixed: str) -> bool:
    """Whether it runs the settings with these digests, from its start or by a reconfiguration."""
    return replica.template == template or (replica.reconfigures and replica.fixed == fixed)


def _stays(replica: ObservedReplica) -> bool:
    if replica.is_drain_requested or replica.is_given_up:
        return False
    return replica.state in {ReplicaState.STARTING, ReplicaState.READY}


def outdated_among(backends: Mapping[str, Backend]) -> Callable[[ObservedReplica], bool]:
    """Whether the launched process of a replica runs anything but the present settings of its backend."""
    digests: dict[str, tuple[str, str]] = {}

    def is_outdated(replica: ObservedReplica) -> bool:
        name = replica.backend
        if not replica.template or replica.gone or (backend := backends.get(name)) is None:
            return False
        if name not in digests:
            digests[name] = template_of(backend), fixed_of(backend)
        return not runs_settings(replica, *digests[name])

    return is_outdated


def differing_settings(backends: Mapping[str, Backend]) -> Callable[[ObservedReplica], str]:
    """The warning of a replica that another system has started in another way than its backend wants."""

    def difference_of(replica: ObservedReplica) -> str:
        backend = backends.get(replica.backend)
        if backend is None or replica.launched or not replica.has_attached or replica.gone:
            return ""
        if backend.devices and (found := difference(backend.devices, replica.devices)):
            return found
        return "" if (facts := replica.process_facts) is None else process_difference(backend.process, facts)

    return difference_of
