"""Changes of the desired state that operators request.

Invariants: each request is planned against the revision that it changes; if another change was faster, it is planned
anew; it is answered, and announced, only after the store has it.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from controller_service.core.desired import ChangeSet, Desired
from controller_service.core.notices import EventKind, Notice
from controller_service.core.planning import ALWAYS, ChangeTerms, Plan, changed_policy, plan_mesh, users_of
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Conflict, Store
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Endpoint, Mesh, Mistake, TrafficPolicy
from slotmesh.status import to_exception

_ATTEMPTS: Final = 100
"""Each failed attempt means that another change went through."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What a request came to."""

    revision: int
    """The configuration's revision that has the change; the present one in a dry run, and where nothing changes."""
    plan: Plan


class Configurator:
    """Plans and commits.

    Every method raises RevisionConflict where the configuration has changed since the revision that the terms expect.
    """

    def __init__(self, store: Store, state: MeshState, *, launches: bool) -> None:
        self._store = store
        self._state = state
        self._launches = launches

    async def apply_mesh(
        self, mesh: Mesh, terms: ChangeTerms = ALWAYS, *, prune: bool = False, found: Collection[Mistake] = ()
    ) -> PlannedChange:
        """Creates and updates, with `prune` also deletes. Raises InvalidSpec; `found` are mistakes seen before."""
        return await self._commit(terms, lambda desired: self._plan(desired, mesh, prune=prune, found=found))

    async def apply_endpoint(
        self, endpoint: Endpoint, terms: ChangeTerms = ALWAYS, *, clear_traffic: bool = False
    ) -> PlannedChange:
        """Creates an endpoint, or changes its policy: `clear_traffic` takes that away. Raises InvalidSpec."""
        mesh = Mesh(endpoints=(endpoint,))
        clear = (endpoint.name,) if clear_traffic else ()
        return await self._commit(terms, lambda desired: self._plan(desired, mesh, clear_traffic=clear))

    async def set_traffic(
        self, name: str, traffic: TrafficPolicy, terms: ChangeTerms = ALWAYS, *, clear_shadows: bool = False
    ) -> PlannedChange:
        """Changes an endpoint's policy: what it says. Raises EndpointNotFound, InvalidSpec."""

        def plan(desired: Desired) -> Plan:
            policy = changed_policy(_endpoint(desired, name).traffic, traffic, clear_shadows=clear_shadows)
            return self._plan(desired, Mesh(endpoints=(Endpoint(name=name, traffic=policy),)))

        return await self._commit(terms, plan)

    async def delete_backend(self, name: str, terms: ChangeTerms = ALWAYS) -> PlannedChange:
        """Raises BackendNotFound, BackendInUse."""

        def plan(desired: Desired) -> Plan:
            if name not in desired.backends:
                raise to_exception(backend_not_found(name))
            if users := users_of(desired, name):
                text = f"backend {name} is named by the traffic of {', '.join(users)}: change that first"
                raise to_exception(Failure(reason=Reason.BACKEND_IN_USE, message=text))
            return Plan(change=ChangeSet(delete_backends=(name,)), deleted=(f"backend/{name}",))

        return await self._commit(terms, plan)

    async def delete_endpoint(self, name: str, terms: ChangeTerms = ALWAYS) -> PlannedChange:
        """Raises EndpointNotFound."""

        def plan(desired: Desired) -> Plan:
            _endpoint(desired, name)
            return Plan(change=ChangeSet(delete_endpoints=(name,)), deleted=(f"endpoint/{name}",))

        return await self._commit(terms, plan)

    def _plan(
        self,
        desired: Desired,
        mesh: Mesh,
        *,
        prune: bool = False,
        clear_traffic: Collection[str] = (),
        found: Collection[Mistake] = (),
    ) -> Plan:
        return plan_mesh(desired, mesh, prune=prune, launches=self._launches, clear_traffic=clear_traffic, found=found)

    async def _commit(self, terms: ChangeTerms, make_plan: Callable[[Desired], Plan]) -> PlannedChange:
        for _ in range(_ATTEMPTS):
            desired = self._store.read()
            if (expected := terms.expected_revision) is not None and not desired.is_configured_as_of(expected):
                raise to_exception(revision_conflict(expected, desired.configured_at))
            plan = make_plan(desired)
            if plan.changes_nothing or terms.dry_run:
                return PlannedChange(desired.configured_at, plan)
            try:
                committed = await self._store.commit(plan.change, expected_revision=desired.revision)
            except Conflict:
                continue
            self._tell(plan, committed.revision)
            return PlannedChange(committed.revision, plan)
        raise to_exception(
            Failure(reason=Reason.INTERNAL, message=f"the configuration changed {_ATTEMPTS} times meanwhile")
        )

    def _tell(self, plan: Plan, revision: int) -> None:
        changes = [("created", plan.created), ("updated", plan.updated), ("deleted", plan.deleted)]
        for verb, names in changes:
            for name in names:
                kind = EventKind[f"{name.partition('/')[0]}_{verb}".upper()]
                self._state.tell(Notice(kind=kind, subject=name, message=f"at revision {revision}"))


def backend_not_found(name: str) -> Failure:
    return Failure(reason=Reason.BACKEND_NOT_FOUND, message=f"there is no backend {name!r}")


def endpoint_not_found(name: str) -> Failure:
    return Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=f"there is no endpoint {name!r}")


def revision_conflict(expected: int, present: int) -> Failure:
    text = (
        f"expected_revision is {expected}, but the configuration has changed since and is at revision {present}:"
        " read it again, and decide anew"
    )
    if expected > present:
        text = (
            f"expected_revision is {expected}, but this controller's configuration is at revision {present} only:"
            " it has begun anew since; read it again, and decide anew"
        )
    facts = {"expected_revision": str(expected), "revision": str(present)}
    return Failure(reason=Reason.REVISION_CONFLICT, message=text, metadata=facts)


def _endpoint(desired: Desired, name: str) -> Endpoint:
    """Raises EndpointNotFound."""
    if (endpoint := desired.endpoints.get(name)) is None:
        raise to_exception(endpoint_not_found(name))
    return endpoint
