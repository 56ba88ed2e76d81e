"""What a controller takes over from the table of an earlier generation that a router has sent.

Purpose: a controller without state learns which replicas there are, which have departed, and which partitions they own,
so that its tables cover that generation and each partition has one owner.
Invariants: an incarnation that the table names, and that is not proven to have ended, is listed from then on; a table
of a generation that is covered as far as that changes nothing of the roster; owners stay owners until they have ended
or are fenced, and partitions that another replica got since stay there; the epoch floor is above all epochs that it
names.
`slotmesh state adopt` (`next_generation`, `with_members_mesh`): a store's next generation keeps its configuration
and history only; its epochs are above all that the store knows. The next controller learns replicas and owners from
routers. A setting that no router knows is never invented: the request is refused.
Owner: the reconcile loop, which commits the change and then drops the table; `shell.changes.controls`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed.replica_groups import unattached, with_all_unattached
from controller_service.core.observed.state import Observed, ObservedReplica, ObservedRouter, ReplicaState
from controller_service.core.partition_owners import Incarnation, PartitionOwnership, inherit
from controller_service.core.roster import NO_ROSTER, EarlierTable, IncarnationRoster, ListedIncarnation
from slotmesh.spec.model import ROUTED, Backend, Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersMesh:
    """The configuration as far as a router's table has it."""

    revision: int
    backends: Mapping[str, Backend] = field(default_factory=lambda: MappingProxyType({}))
    """With those of their settings that routers read."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=lambda: MappingProxyType({}))


class NotAdoptable(Exception):
    """The members do not know enough; the message has what to do first."""


def next_generation(desired: Desired, *, epoch_floor: int) -> Desired:
    """The state with its configuration and history, orders about replicas, and the requests that it has answered."""
    epochs = [max(it.epochs, default=0) for it in desired.ownership.values()]
    return Desired(
        revision=desired.revision,
        configured_at=desired.configured_at,
        backends=desired.backends,
        endpoints=desired.endpoints,
        routes=desired.routes,
        applied=desired.applied,
        history=desired.history,
        answers=desired.answers,
        orders=desired.orders,
        epoch_floor=max(epoch_floor, desired.epoch_floor, *epochs),
        roster=NO_ROSTER,
    )


def with_members_mesh(desired: Desired, mesh: MembersMesh, origin: ChangeOrigin) -> tuple[Desired, tuple[str, ...]]:
    """The state with the configuration that the members know; and the subjects that differ. Raises NotAdoptable."""
    unknown = sorted(name for name in mesh.backends if name not in desired.backends)
    if unknown:
        named = ", ".join(f"backend/{name}" for name in unknown)
        raise NotAdoptable(
            f"the state file has no {named}, which members serve, and routers do not know the handler and all settings"
            " of a backend: apply the newest mesh.yaml first (it takes no effect before you adopt)"
        )
    backends = {name: _as_routed(desired.backends[name], known) for name, known in mesh.backends.items()}
    put_backends = tuple(it for name, it in backends.items() if it != desired.backends[name])
    put_endpoints = tuple(it for name, it in mesh.endpoints.items() if it != desired.endpoints.get(name))
    gone_endpoints = tuple(sorted(desired.endpoints.keys() - mesh.endpoints.keys()))
    gone_backends = tuple(sorted(desired.backends.keys() - mesh.backends.keys()))
    gone_routes = tuple(sorted(path for path, it in desired.routes.items() if it.endpoint in gone_endpoints))
    changed = (
        *(f"backend/{it.name}" for it in put_backends),
        *(f"endpoint/{it.name}" for it in put_endpoints),
        *(f"backend/{name}" for name in gone_backends),
        *(f"endpoint/{name}" for name in gone_endpoints),
    )
    if not changed:
        return desired, ()
    change = ChangeSet(
        put_backends=put_backends,
        delete_backends=gone_backends,
        put_endpoints=put_endpoints,
        delete_endpoints=gone_endpoints,
        delete_routes=gone_routes,
        origin=origin,
    )
    return desired.apply(change), tuple(sorted(changed))


def _as_routed(stored: Backend, known: Backend) -> Backend:
    """The stored backend, with those settings that routers read as they know them."""
    return replace(stored, **{each.attribute: getattr(known, each.attribute) for each in ROUTED.values()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What follows from a table."""

    observed: Observed
    change: ChangeSet
    taken: tuple[str, ...] = ()
    """Ids of replicas that were not known before."""


def has_rivals(observed: Observed, earlier: EarlierTable) -> bool:
    """Whether it names other incarnations than those attached here: they may be alive, or have been replaced."""
    return any(_rival(observed, member) is not None for member in earlier.roster.members)


def adopt(
    desired: Desired, observed: Observed, earlier: EarlierTable, *, generation: str, now: float, time_of_day: float
) -> Adoption:
    """`generation` is this controller's. `now` is monotonic, `time_of_day` seconds since 1970.

    Where the table has rivals, routers have reported their links and silence has lasted for a lease: an incarnation
    whose id another one has attached with, and to which no router has a link, has been replaced. A router that links
    to a part of the replicas has to have tried: until then it is unresolved, and routers try (`is_suspect`).
    """
    roster, taken = desired.roster, list[str]()
    others = [it for it in earlier.chain() if it.generation != generation]
    if any(it.revision > roster.covered_revision(it.generation) for it in others):
        observed = _without_departed(observed, earlier, now)
        routers = [it for it in observed.routers.values() if it.generation not in {"", generation}]
        observed, more, ended = _with_named(roster, observed, earlier, routers, now)
        taken += more
        roster = roster.learning(
            _without_living(earlier, observed),
            earlier.generation,
            ended=ended,
            generation=generation,
            revision=desired.revision + 1,
            now=time_of_day,
        )
    observed = _with_epochs(observed, earlier)
    inherited: dict[str, PartitionOwnership | None] = {}
    alike: dict[tuple[int, int], PartitionOwnership | None] = {}
    for name, each in sorted(earlier.ownership.items()):
        current = desired.ownership.get(name)
        if (key := (id(current), id(each))) not in alike:
            alike[key] = inherit(current, each, observed.is_dead)
        inherited[name] = alike[key]
    return Adoption(
        observed=observed,
        change=ChangeSet(
            put_ownership={name: it for name, it in inherited.items() if it is not None},
            put_roster=None if roster is desired.roster else roster,
            epoch_floor=earlier.newest_epoch,
        ),
        taken=tuple(taken),
    )


def replaced(observed: Observed, *, lease_s: float, now: float) -> list[Incarnation]:
    """Incarnations whose id another one has attached with, and to which no router has had a link for `lease_s`.

    The same proof as in `adopt`, for those of which a router still reported a link when they were adopted. Nothing is
    concluded while a router has not had a lease's time to report.
    """
    routers = observed.routers.values()
    if any(not it.generation or now < it.started_at + lease_s for it in routers):
        return []
    return [
        owner
        for owner, record in observed.unresolved.items()
        if not record.gone
        and record.suspect_since is not None
        and now >= record.suspect_since + lease_s
        and (successor := observed.replica(owner.replica_id)) is not None
        and successor.incarnation
        and successor.named_by is None
        and not any(router.may_reach(owner) for router in routers)
    ]


def ended(observed: Observed, owner: Incarnation, now: float) -> Observed:
    """An incarnation is proven to have ended. The very same Observed comes back where that is nothing new."""
    known = observed.incarnation(owner)
    if known is None or known.gone:
        return observed
    record = replace(
        known,
        gone=True,
        state=ReplicaState.FAILED if known.state is ReplicaState.FAILED else ReplicaState.STOPPED,
        ended_at=now if known.ended_at is None else known.ended_at,
    )
    if owner not in observed.unresolved:
        return observed.with_replica(record)
    observed = observed.without_unresolved([owner])
    successor = observed.replica(owner.replica_id)
    if successor is None:
        return observed.with_replica(record)
    return observed.with_replica(successor.having_replaced(owner.incarnation))


def _rival(observed: Observed, member: ListedIncarnation) -> ObservedReplica | None:
    """The incarnation that is attached, or was, under the id of one that is not known."""
    known = observed.replica(member.owner.replica_id)
    if known is None or known.gone or known.named_by is not None or _is_known(observed, member.owner):
        return None
    return known if known.incarnation else None


def _is_known(observed: Observed, owner: Incarnation) -> bool:
    replica = observed.replica(owner.replica_id)
    return observed.incarnation(owner) is not None or (replica is not None and owner.incarnation in replica.retired)


def _without_departed(observed: Observed, earlier: EarlierTable, now: float) -> Observed:
    """Replicas that an older table named, and that this one does not name any more, have ended."""
    named = earlier.roster.owners()
    departed = {it.owner for it in earlier.roster.departed}
    for replica in [*observed.incarnations()]:
        if replica.named_by is None:
            continue  # it has attached, or was launched: what is known here is newer
        if replica.owner in departed or (replica.owner not in named and earlier.covers(*replica.named_by)):
            observed = ended(observed, replica.owner, now)
    return observed


def _without_living(earlier: EarlierTable, observed: Observed) -> IncarnationRoster:
    """Its roster, without departures of incarnations that are attached: these have not ended."""
    departed = tuple(
        it for it in earlier.roster.departed if (known := observed.incarnation(it.owner)) is None or known.gone
    )
    return replace(earlier.roster, departed=departed)


def _with_named(
    roster: IncarnationRoster,
    observed: Observed,
    earlier: EarlierTable,
    routers: Collection[ObservedRouter],
    now: float,
) -> tuple[Observed, list[str], list[Incarnation]]:
    """With the members of the table that are not known yet; their ids, and the members that have ended.

    `routers` are those with tables of other generations.
    """
    linked = {it.replica_id for router in routers for it in router.linked}
    departed = {it.owner for it in roster.departed} | {it.owner for it in earlier.roster.departed}
    named = roster.owners()
    taken: list[str] = []
    ended: list[Incarnation] = []
    records: dict[str, ObservedReplica] = {}
    for member in earlier.roster.members:
        owner = member.owner
        if owner in departed:
            continue
        if owner.replica_id in records:
            # What follows depends on what is known of its id. All others are taken over together.
            observed = with_all_unattached(observed, records.values())
            records.clear()
        if _is_known(observed, owner):
            if observed.is_dead(owner) and owner not in named:
                ended.append(owner)  # no table of this generation has named it, so none lists it as departed
        elif (
            _rival(observed, member) is not None
            and owner.replica_id not in linked
            and not any(router.may_reach(owner) for router in routers)
        ):
            ended.append(owner)
        else:
            named_by = (earlier.generation, earlier.roster.revision)
            records[owner.replica_id] = unattached(member, named_by, must_fence_through=1, now=now)
            taken.append(owner.replica_id)
    return with_all_unattached(observed, records.values()), taken, ended


def _with_epochs(observed: Observed, earlier: EarlierTable) -> Observed:
    """Owners start nothing of the epochs that it names before they are given anything."""
    newest: dict[Incarnation, int] = {}
    for ownership in {id(it): it for it in earlier.ownership.values()}.values():
        for index, epoch in zip(ownership.partition_owners, ownership.epochs, strict=True):
            if index >= 0:
                owner = ownership.owners[index]
                newest[owner] = max(newest.get(owner, 0), epoch)
    records: list[ObservedReplica] = []
    unresolved: list[ObservedReplica] = []
    for owner, epoch in newest.items():
        known = observed.incarnation(owner)
        if known is None or known.gone or known.fenced_through >= epoch or known.must_fence_through >= epoch:
            continue
        record = replace(known, must_fence_through=epoch)
        (unresolved if owner in observed.unresolved else records).append(record)
    return observed.with_replicas(records).with_unresolved(unresolved)
