"""The desired state: backends, endpoints, routes, owners of partitions, rollouts, shifts, roster. What a store keeps.

Invariants: immutable; `revision` strictly increases with every change; a policy names backends that exist; partition
epochs of an endpoint never go back, not even when it is deleted and created again (`epoch_floor`); each change of a
backend or an endpoint is in the history; a shift that is under way ends with a change of its endpoint's weights.
Answered requests: a request that is repeated after a lost reply takes effect once; its caller names it by an id. The
newest are kept: at most `MAX_ANSWERS`, at most `MAX_REPLIES_BYTES` of replies, each for `KEPT_S`. An answer is stored
together with its change. A request that was refused is not kept: when it is repeated, it is tried again.
Owner: the store. Servicers change backends and endpoints, the reconcile loop the rest; each by a `ChangeSet`
that is applied to the revision it was planned for, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from controller_service.core.desired.revisions import (
    UNKNOWN_ORIGIN,
    ChangeOrigin,
    History,
    Resource,
    RevisionRecord,
    by_subject,
    changes_between,
    recorded,
    subject_of,
)
from controller_service.core.desired.shifts import ShiftRecord, overtaken
from controller_service.core.partition_owners import Incarnation, PartitionOwnership
from controller_service.core.roster import NO_ROSTER, IncarnationRoster, LeaderTerm, with_term
from slotmesh.spec.model import SETTINGS, Backend, Endpoint
from slotmesh.spec.routes import Route, route_path, route_subject
from slotmesh.spec.setting import Change

MAX_ANSWERS: Final = 1_000
MAX_REPLIES_BYTES: Final = 2**20
KEPT_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """A request that was carried out, whether or not it changed anything."""

    key: str
    """The caller's identity and the id that it has chosen: two callers may choose the same id."""
    digest: str
    """Of the request, the name of its rpc included."""
    time_s: float
    """When it was answered, seconds since 1970."""
    reply: bytes
    """The message that answered it."""


AnsweredRequests: TypeAlias = Mapping[str, AnsweredRequest]
"""By key, oldest first."""
NO_ANSWERS: Final[AnsweredRequests] = MappingProxyType({})


def with_answer(known: AnsweredRequests, new: AnsweredRequest) -> AnsweredRequests:
    """With one more, and without those that are too old, or for which there is no room."""
    kept = [new]
    size = len(new.reply)
    for each in reversed([*known.values()]):
        size += len(each.reply)
        if len(kept) == MAX_ANSWERS or size > MAX_REPLIES_BYTES or _is_over(each, new.time_s):
            break
        if each.key != new.key:
            kept.append(each)
    return MappingProxyType({each.key: each for each in reversed(kept)})


def find_answer(known: AnsweredRequests, key: str, now_s: float) -> AnsweredRequest | None:
    """What a request of that key was answered, unless that was too long ago. `now_s`: seconds since 1970."""
    answer = known.get(key)
    return None if answer is None or _is_over(answer, now_s) else answer


def _is_over(answer: AnsweredRequest, now_s: float) -> bool:
    return now_s - answer.time_s > KEPT_S


MAX_ORDERS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOrder:
    """What an operator ordered of one incarnation of a replica.

    It is stored before it is carried out, and carried out again by each later controller: it is never taken back.
    """

    owner: Incarnation
    """The incarnation is empty if the process was launched, and had not attached yet."""
    is_end: bool
    """The incarnation counts as ended. Otherwise it drains."""
    who: str
    time_s: float
    """When it was ordered, seconds since 1970."""

    @property
    def key(self) -> str:
        """Its name in the store: an incarnation has one order, the newest."""
        return "/".join(self.owner)


ReplicaOrders: TypeAlias = Mapping[str, ReplicaOrder]
"""By key, oldest first; the newest `MAX_ORDERS`. Older ones were carried out long ago."""


def order_of(orders: ReplicaOrders, owner: Incarnation) -> ReplicaOrder | None:
    """The order for an incarnation; also one for its process, from before it attached."""
    return orders.get("/".join(owner)) or orders.get(f"{owner.replica_id}/")


def new_orders(before: Desired, after: Desired) -> list[ReplicaOrder]:
    """Orders that were stored between two revisions."""
    if before.orders is after.orders:
        return []
    return [it for key, it in after.orders.items() if before.orders.get(key) is not it]


def _with_orders(known: ReplicaOrders, new: Collection[ReplicaOrder]) -> ReplicaOrders:
    put = {it.key: it for it in new}
    kept = [it for it in known.values() if it.key not in put]
    return MappingProxyType({it.key: it for it in [*kept, *new][-MAX_ORDERS:]})


RESTART_SETTINGS: Final = tuple(each.attribute for each in SETTINGS.values() if each.change is not Change.TAKEN_OVER)
"""The settings that a rollout changes, and that a roll back restores. Changes of other settings stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """The newest rollout of a backend; everything else follows from its replicas.

    `good` was in force at all replicas that should run. `template` is what was being rolled out when the record was
    written: one that differs from the backend's means that a rollout begins.
    """

    backend: str
    template: str
    """A digest of what replicas should be started with."""
    since_s: float = 0.0
    """When it began, seconds since 1970."""
    is_complete: bool = False
    is_paused: bool = False
    good: Backend | None = None
    """The settings that were rolled out last, and completely. None: there were none yet."""
    previous: Backend | None = None
    """The settings before these."""
    why: str = ""
    """Why the rollout before this one was rolled back; empty where it was not."""
    failed_at_s: float = 0.0
    """When that was, seconds since 1970."""


def restored(backend: Backend, settings: Backend) -> Backend:
    """The backend with what these settings start replicas with."""
    return replace(backend, **{name: getattr(settings, name) for name in RESTART_SETTINGS})


def deleted_subjects(change: ChangeSet) -> list[str]:
    """What a change deletes, as `backend/digits-v1`."""
    return [
        *(f"backend/{it}" for it in change.delete_backends),
        *(f"endpoint/{it}" for it in change.delete_endpoints),
        *map(route_subject, change.delete_routes),
    ]


def of_spec(subject: str) -> str:
    """The key in `Desired.applied` of what `--spec` itself stated last: no name and no path has a `#`.

    It is a key of that mapping, and none beside it, because version 0.2.0 reads and keeps any key there.
    """
    return f"{subject}{OF_SPEC}"


OF_SPEC: Final = "#spec"
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSet:
    """What one transaction changes. An empty one takes a revision and changes nothing else."""

    put_backends: tuple[Backend, ...] = ()
    delete_backends: tuple[str, ...] = ()
    put_endpoints: tuple[Endpoint, ...] = ()
    delete_endpoints: tuple[str, ...] = ()
    put_routes: tuple[Route, ...] = ()
    delete_routes: tuple[str, ...] = ()
    """Paths."""
    put_ownership: Mapping[str, PartitionOwnership] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint."""
    put_rollouts: tuple[RolloutRecord, ...] = ()
    put_shifts: tuple[ShiftRecord, ...] = ()
    put_orders: tuple[ReplicaOrder, ...] = ()
    put_roster: IncarnationRoster | None = None
    """None: as it is."""
    epoch_floor: int = 0
    """At least this, from now on."""
    put_applied: tuple[Resource, ...] = ()
    """What files have stated last."""
    put_specified: tuple[Resource, ...] = ()
    """Resources of `--spec`, as it has them."""
    origin: ChangeOrigin = UNKNOWN_ORIGIN
    """Who asked for it, where it changes a backend, an endpoint or a route."""
    answer: AnsweredRequest | None = None
    """The request that asked for it, if it may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """One revision of what should be."""

    revision: int = 0
    configured_at: int = 0
    """The revision that changed a backend, an endpoint or a route last."""
    backends: Mapping[str, Backend] = field(default_factory=lambda: MappingProxyType({}))
    endpoints: Mapping[str, Endpoint] = field(default_factory=lambda: MappingProxyType({}))
    routes: Mapping[str, Route] = field(default_factory=lambda: MappingProxyType({}))
    """By path."""
    ownership: Mapping[str, PartitionOwnership] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint; there is none for endpoints whose partitions were never assigned."""
    rollouts: Mapping[str, RolloutRecord] = field(default_factory=lambda: MappingProxyType({}))
    """By backend; there is none before the first rollout is complete."""
    shifts: Mapping[str, ShiftRecord] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint: the newest of each that was ever shifted."""
    epoch_floor: int = 0
    """New epochs are above this: an endpoint of the same name, or an earlier generation, may have used these."""
    roster: IncarnationRoster = NO_ROSTER
    """The incarnations that the newest table names."""
    history: History = ()
    """The newest changes of backends and endpoints."""
    terms: tuple[LeaderTerm, ...] = field(default=(), compare=False)
    """Those in which this state was written, oldest first; the newest `TERMS_KEPT`. No part of what should be."""
    applied: Mapping[str, Resource] = field(default_factory=lambda: MappingProxyType({}))
    """By subject, as `backend/digits-v1`: what files have stated of it last; under `of_spec` what `--spec` did."""
    answers: AnsweredRequests = field(default_factory=lambda: NO_ANSWERS)
    """Requests that were carried out, and may be repeated."""
    orders: ReplicaOrders = field(default_factory=lambda: MappingProxyType({}))

    @property
    def resources(self) -> dict[str, Resource]:
        """All that is configured, by subject."""
        return by_subject(self.backends.values(), self.endpoints.values(), self.routes.values())

    def resource(self, subject: str) -> Resource | None:
        """The backend, endpoint or route, if it is configured."""
        kind, _, name = subject.partition("/")
        if kind == "route":
            return self.routes.get(route_path(subject))
        return self.backends.get(name) if kind == "backend" else self.endpoints.get(name)

    @property
    def term_id(self) -> str:
        """Of the present term."""
        return self.terms[-1].term_id if self.terms else ""

    def beginning(self, term_id: str) -> Desired:
        """A term begins: with a revision, so that its tables are newer than all that were announced before."""
        terms = with_term(self.terms, LeaderTerm(term_id, self.revision + 1))
        return replace(self, revision=self.revision + 1, terms=terms)

    def configured_after(self, change: ChangeSet) -> int:
        """What `configured_at` is once a change is applied."""
        puts = change.put_backends or change.put_endpoints or change.put_routes
        deletes = (
            *(name in self.backends for name in change.delete_backends),
            *(name in self.endpoints for name in change.delete_endpoints),
            *(path in self.routes for path in change.delete_routes),
        )
        return self.revision + 1 if puts or any(deletes) else self.configured_at

    def apply(self, change: ChangeSet) -> Desired:
        """The next revision. Mappings that do not change stay the same objects."""
        deleted = {id(it): it for name in change.delete_endpoints if (it := self.ownership.get(name)) is not None}
        backends = _changed(self.backends, {it.name: it for it in change.put_backends}, change.delete_backends)
        endpoints = _changed(self.endpoints, {it.name: it for it in change.put_endpoints}, change.delete_endpoints)
        routes = _changed(self.routes, {it.path: it for it in change.put_routes}, change.delete_routes)
        shifts = {it.endpoint: it for it in change.put_shifts}
        who, time_s = change.origin.who, change.origin.time_s
        shifts |= overtaken(self.shifts, self.endpoints, change.put_endpoints, own=shifts, who=who, time_s=time_s)
        configured_at, history = self.configured_after(change), self.history
        if configured_at != self.configured_at:
            changes = (
                *changes_between(self.backends, backends),
                *changes_between(self.endpoints, endpoints),
                *changes_between(self.routes, routes),
            )
            record = RevisionRecord(
                revision=self.revision + 1, origin=change.origin, changes=changes, base=self.configured_at
            )
            history = recorded(history, record)
        return replace(
            self,
            revision=self.revision + 1,
            configured_at=configured_at,
            history=history,
            backends=backends,
            endpoints=endpoints,
            routes=routes,
            ownership=_changed(self.ownership, change.put_ownership, change.delete_endpoints),
            rollouts=_changed(self.rollouts, {it.backend: it for it in change.put_rollouts}, change.delete_backends),
            shifts=_changed(self.shifts, shifts, change.delete_endpoints),
            epoch_floor=max([self.epoch_floor, change.epoch_floor, *(max(it.epochs) for it in deleted.values())]),
            roster=self.roster if change.put_roster is None else change.put_roster,
            answers=self.answers if change.answer is None else with_answer(self.answers, change.answer),
            orders=_with_orders(self.orders, change.put_orders) if change.put_orders else self.orders,
            applied=_changed(
                self.applied,
                {subject_of(it): it for it in change.put_applied}
                | {of_spec(subject_of(it)): it for it in change.put_specified},
                [key for it in deleted_subjects(change) for key in (it, of_spec(it))],
            ),
        )


def _changed(before: Mapping[str, ValueT], put: Mapping[str, ValueT], delete: Collection[str]) -> Mapping[str, ValueT]:
    if not put and not any(name in before for name in delete):
        return before
    after = {**before, **put}
    for name in delete:
        after.pop(name, None)
    return MappingProxyType(after)
