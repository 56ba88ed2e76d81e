"""Tables that routers bring, and a controller's state that takes them over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller_service.core import transitions
from controller_service.core.adoption import Adoption, adopt
from controller_service.core.brought import BroughtTable
from controller_service.core.desired import ChangeSet, Desired
from controller_service.core.observed import Observed, ReplicaState, Router
from controller_service.core.partitions import NO_OWNER, Owner, ownership_of
from controller_service.core.roster import Covered, Departure, Member, Roster
from controller_service.core.routing import build_routes
from controller_service.core.transitions import Hello, Report
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from slotmesh.wire.partitions import PARTITIONS

E = Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0}))
TOLD = Desired(epoch_floor=50).apply(ChangeSet(put_backends=(Backend(name="v1", num_replicas=1),), put_endpoints=(E,)))
READY = Report(state=ReplicaState.READY, address="h:1", max_ongoing=1)
NOW = 100.0


def life(name: str, incarnation: str = "1") -> Owner:
    return Owner(name, incarnation)


def table(
    members: Iterable[Owner],
    owners: Mapping[int, tuple[Owner | None, int]] | None = None,
    *,
    generation: str = "f",
    revision: int = 9,
    departed: Iterable[Owner] = (),
    covers: tuple[Covered, ...] = (),
) -> BroughtTable:
    """`owners`: of some partitions, with their epochs; the others have none, at epoch 0."""
    owner_of = [owners[number][0] if owners and number in owners else None for number in range(PARTITIONS)]
    epochs = [owners[number][1] if owners and number in owners else 0 for number in range(PARTITIONS)]
    return BroughtTable(
        generation=generation,
        roster=Roster(
            revision=revision,
            members=tuple(Member(owner=it, backend="v1", address="h:9", max_ongoing=3) for it in members),
            departed=tuple(
                Departure(owner=it, generation=generation, revision=revision, left_at=0.0) for it in departed
            ),
            covers=covers,
        ),
        ownership={"e": ownership_of("e", owner_of, epochs)},
    )


def take(state: Desired, observed: Observed, brought: BroughtTable) -> tuple[Desired, Observed, Adoption]:
    adoption = adopt(state, observed, brought, generation="g", now=NOW, time_of_day=0.0)
    return state.apply(adoption.change), adoption.observed, adoption


def listed(state: Desired, observed: Observed) -> set[Owner]:
    return {member.owner for member in build_routes(state, observed).members()}


def attached(
    observed: Observed, owner: Owner, *, generation: str = "", newest_epoch: int = 0, is_heard: bool = False
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
    router = Router(router_id="r", address="h:2", started_at=0.0, generation=generation, linked_replica_ids=linked)
    return observed.with_router(router)


def owner_of(state: Desired, number: int) -> tuple[Owner | None, int]:
    ownership = state.ownership["e"]
    index = ownership.partition_owners[number]
    return (None if index == NO_OWNER else ownership.owners[index]), ownership.epochs[number]
