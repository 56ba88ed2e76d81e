"""Tables that routers bring, and a controller's state that takes them over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import transitions
from controller_service.core.observed.adoption import Adoption, adopt
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ObservedRouter, ReplicaState
from controller_service.core.partition_owners import NO_OWNER, Incarnation, ownership_of
from controller_service.core.reconciling.routes import all_members, build_routes
from controller_service.core.roster import (
    CoveredTables,
    DepartedIncarnation,
    EarlierTable,
    IncarnationRoster,
    ListedIncarnation,
)
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy

E = Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0}))
TOLD = Desired(epoch_floor=50).apply(ChangeSet(put_backends=(Backend(name="v1", num_replicas=1),), put_endpoints=(E,)))
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
NOW = 100.0


def life(name: str, incarnation: str = "1") -> Incarnation:
    return Incarnation(name, incarnation)


def table(
    members: Iterable[Incarnation],
    owners: Mapping[int, tuple[Incarnation | None, int]] | None = None,
    *,
    generation: str = "f",
    revision: int = 9,
    departed: Iterable[Incarnation] = (),
    covers: tuple[CoveredTables, ...] = (),
) -> EarlierTable:
    """`owners`: of some partitions, with their epochs; the others have none, at epoch 0."""
    owner_of = [owners[number][0] if owners and number in owners else None for number in range(PARTITIONS)]
    epochs = [owners[number][1] if owners and number in owners else 0 for number in range(PARTITIONS)]
    return EarlierTable(
        generation=generation,
        roster=IncarnationRoster(
            revision=revision,
            members=tuple(ListedIncarnation(owner=it, backend="v1", address="h:9", max_ongoing=3) for it in members),
            departed=tuple(
                DepartedIncarnation(owner=it, generation=generation, revision=revision, left_at=0.0) for it in departed
            ),
            covers=covers,
        ),
        ownership={"e": ownership_of(owner_of, epochs)},
    )


def take(state: Desired, observed: Observed, brought: EarlierTable) -> tuple[Desired, Observed, Adoption]:
    adoption = adopt(state, observed, brought, generation="g", now=NOW, time_of_day=0.0)
    return state.apply(adoption.change), adoption.observed, adoption


def listed(state: Desired, observed: Observed) -> set[Incarnation]:
    return {member.owner for member in all_members(build_routes(state, observed))}


def attached(
    observed: Observed, owner: Incarnation, *, generation: str = "", newest_epoch: int = 0, is_heard: bool = False
) -> Observed:
    hello = Hello(
        replica_id=owner.replica_id,
        incarnation=owner.incarnation,
        backend="v1",
        has_served=bool(generation),
        generation=generation,
        newest_epoch=newest_epoch,
    )
    observed = transitions.attached(observed, hello, now=NOW, is_heard=is_heard).observed
    return transitions.reported(observed, owner.replica_id, owner.incarnation, READY, now=NOW).observed


def with_router(observed: Observed, *linked: str, generation: str = "f") -> Observed:
    router = ObservedRouter(
        router_id="r",
        address="h:2",
        started_at=0.0,
        generation=generation,
        linked=frozenset(it.owner for it in map(observed.replica, linked) if it is not None),
    )
    return observed.with_router(router)


def owner_of(state: Desired, number: int) -> tuple[Incarnation | None, int]:
    ownership = state.ownership["e"]
    index = ownership.partition_owners[number]
    return (None if index == NO_OWNER else ownership.owners[index]), ownership.epochs[number]
