"""Plans of operators' requests, checked against the configuration: what is created, updated, unchanged, deleted.

Invariants: a plan holds for the revision it was made of only; a request with any mistake changes nothing; what is there
already, unchanged, is not written again; an endpoint without a policy in the request keeps its own.
Owner: `shell.configurator`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired import ChangeSet, Desired
from slotmesh.spec.model import Endpoint, InvalidSpec, Mesh, Mistake, TrafficPolicy
from slotmesh.spec.rules import mesh_mistakes, show


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A change and its summary. Names are `backend/NAME` or `endpoint/NAME`."""

    change: ChangeSet
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return not (self.created or self.updated or self.deleted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTerms:
    """On what terms a change is wanted."""

    dry_run: bool = False
    """It is planned, and not made."""
    expected_revision: int | None = None
    """It is refused where the configuration has changed since this revision. None: it is never."""


ALWAYS: Final = ChangeTerms()


def plan_mesh(
    desired: Desired,
    mesh: Mesh,
    *,
    prune: bool,
    launches: bool,
    clear_traffic: Collection[str] = (),
    found: Collection[Mistake] = (),
) -> Plan:
    """Creates and updates what `mesh` has; `prune` deletes what it lacks. Raises InvalidSpec with every mistake.

    `clear_traffic` names endpoints of `mesh` without a policy that should have none. `found` are mistakes that were
    seen before, and that the mesh does not show any more.
    """
    mesh = replace(mesh, endpoints=tuple(_with_policy(desired, each, clear_traffic) for each in mesh.endpoints))
    backends = {backend.name: backend for backend in mesh.backends}
    endpoints = {endpoint.name: endpoint for endpoint in mesh.endpoints}
    known = backends.keys() if prune else {**desired.backends, **backends}.keys()
    mistakes = [*found, *mesh_mistakes(mesh), *_unknown_backends(mesh.endpoints, known)]
    if launches:
        mistakes += [
            Mistake(f"backends.{show(name)}.handler", "required, as MODULE:NAME: this controller launches the replicas")
            for name, backend in backends.items()
            if not backend.handler
        ]
    if mistakes:
        raise InvalidSpec(mistakes)

    created: list[str] = []
    updated: list[str] = []
    unchanged: list[str] = []
    for kind, there, wanted in (
        ("backend", desired.backends, backends),
        ("endpoint", desired.endpoints, endpoints),
    ):
        for name, resource in wanted.items():
            bucket = created if name not in there else unchanged if there[name] == resource else updated
            bucket.append(f"{kind}/{name}")
    gone_backends = tuple(sorted(desired.backends.keys() - backends.keys())) if prune else ()
    gone_endpoints = tuple(sorted(desired.endpoints.keys() - endpoints.keys())) if prune else ()
    same = set(unchanged)
    return Plan(
        change=ChangeSet(
            put_backends=tuple(it for name, it in backends.items() if f"backend/{name}" not in same),
            put_endpoints=tuple(it for name, it in endpoints.items() if f"endpoint/{name}" not in same),
            delete_backends=gone_backends,
            delete_endpoints=gone_endpoints,
        ),
        created=tuple(created),
        updated=tuple(updated),
        unchanged=tuple(unchanged),
        deleted=(*(f"endpoint/{name}" for name in gone_endpoints), *(f"backend/{name}" for name in gone_backends)),
    )


def changed_policy(current: TrafficPolicy | None, said: TrafficPolicy, *, clear_shadows: bool) -> TrafficPolicy:
    """The policy of an endpoint: weights and shadows of the request, and the present ones where it has none."""
    before = current or TrafficPolicy(weights={})
    return TrafficPolicy(
        weights=said.weights or before.weights,
        shadows={} if clear_shadows else said.shadows or before.shadows,
    )


def users_of(desired: Desired, backend: str) -> list[str]:
    """The endpoints whose policies name a backend: it must not be deleted while they do."""
    return sorted(
        endpoint.name
        for endpoint in desired.endpoints.values()
        if endpoint.traffic is not None and backend in {*endpoint.traffic.weights, *endpoint.traffic.shadows}
    )


def _with_policy(desired: Desired, endpoint: Endpoint, clear_traffic: Collection[str]) -> Endpoint:
    """The desired endpoint: with its present policy, where the request has none."""
    there = desired.endpoints.get(endpoint.name)
    if endpoint.traffic is not None or there is None or endpoint.name in clear_traffic:
        return endpoint
    return replace(endpoint, traffic=there.traffic)


def _unknown_backends(endpoints: Collection[Endpoint], known: Collection[str]) -> Iterator[Mistake]:
    for endpoint in endpoints:
        if endpoint.traffic is None:
            continue
        named: Mapping[str, str] = {
            **dict.fromkeys(endpoint.traffic.weights, "traffic"),
            **dict.fromkeys(endpoint.traffic.shadows, "shadows"),
        }
        for name, part in named.items():
            if name not in known:
                yield Mistake(
                    f"endpoints.{show(endpoint.name)}.{part}.{show(name)}",
                    f"no backend has this name ({_listed(known)})",
                )


def _listed(names: Collection[str], most: int = 8) -> str:
    shown = sorted(names)[:most]
    rest = len(names) - len(shown)
    return "there is none" if not shown else "there are " + ", ".join(shown) + (f" and {rest} more" if rest else "")
