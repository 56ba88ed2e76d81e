"""What a store should have in its next generation, where members know a newer state than it does.

Purpose: `slotmesh state adopt`. The next controller learns from routers which replicas there are and who owns which
keys, as one without a store does (`core.adoption`); only the configuration is decided here.
Invariants: of the store only the configuration and its history go on; new epochs are above all that the store knows. A
setting that no router knows is never invented: what cannot be known is refused.
Owner: `shell.state_keeper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controller_service.core.desired import ChangeSet, Desired
from controller_service.core.revisions import ChangeOrigin
from controller_service.core.roster import NO_ROSTER
from slotmesh.spec.model import ROUTED, Backend, Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersMesh:
    """The configuration as far as a router's table has it."""

    revision: int
    backends: Mapping[str, Backend] = field(default_factory=lambda: MappingProxyType({}))
    """With those of their settings that routers read."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=lambda: MappingProxyType({}))


class NotAdoptable(Exception):
    """The members do not know enough; the message says what to do first."""


def next_generation(desired: Desired, *, epoch_floor: int) -> Desired:
    """The state with its configuration, its history and the requests that it has answered, and nothing else."""
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
