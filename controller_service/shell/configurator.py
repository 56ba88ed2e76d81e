"""Changes of what should be, as operators ask for them.

Invariants: each request is planned against the revision that it changes; if somebody else was faster, it is planned
anew; it answers after the store has it, and only then anybody hears of it.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from controller_service.core.desired import ChangeSet
from controller_service.core.planning import Plan, plan_mesh, users_of
from controller_service.core.transitions import Notice
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Conflict, Store
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Endpoint, Mesh, Mistake, TrafficPolicy
from slotmesh.status import to_exception

_ATTEMPTS: Final = 100
"""Each failed attempt means that somebody else's change went through."""


class Configurator:
    """Plans and commits. Every method returns the revision that has the change."""

    def __init__(self, store: Store, state: MeshState, *, launches: bool) -> None:
        self._store = store
        self._state = state
        self._launches = launches

    async def apply_mesh(self, mesh: Mesh, *, prune: bool, found: Collection[Mistake] = ()) -> tuple[int, Plan]:
        """Creates and updates, with `prune` also deletes. Raises InvalidSpec; `found` are mistakes seen before."""
        return await self._commit(lambda: self._plan(mesh, prune=prune, found=found))

    async def set_traffic(self, name: str, traffic: TrafficPolicy) -> int:
        """Replaces an endpoint's policy. Raises EndpointNotFound, InvalidSpec."""

        def plan() -> Plan:
            self._require_endpoint(name)
            return self._plan(Mesh(endpoints=(Endpoint(name=name, traffic=traffic),)), prune=False)

        revision, _ = await self._commit(plan)
        return revision

    async def delete_backend(self, name: str) -> int:
        """Raises BackendNotFound, BackendInUse."""

        def plan() -> Plan:
            desired = self._store.read()
            if name not in desired.backends:
                raise to_exception(backend_not_found(name))
            if users := users_of(desired, name):
                text = f"backend {name} is named by the traffic of {', '.join(users)}: change that first"
                raise to_exception(Failure(reason=Reason.BACKEND_IN_USE, message=text))
            return Plan(change=ChangeSet(delete_backends=(name,)), deleted=(f"backend/{name}",))

        revision, _ = await self._commit(plan)
        return revision

    async def delete_endpoint(self, name: str) -> int:
        """Raises EndpointNotFound."""

        def plan() -> Plan:
            self._require_endpoint(name)
            return Plan(change=ChangeSet(delete_endpoints=(name,)), deleted=(f"endpoint/{name}",))

        revision, _ = await self._commit(plan)
        return revision

    def _plan(self, mesh: Mesh, *, prune: bool, found: Collection[Mistake] = ()) -> Plan:
        return plan_mesh(self._store.read(), mesh, prune=prune, launches=self._launches, found=found)

    def _require_endpoint(self, name: str) -> None:
        if name not in self._store.read().endpoints:
            raise to_exception(endpoint_not_found(name))

    async def _commit(self, make_plan: Callable[[], Plan]) -> tuple[int, Plan]:
        for _ in range(_ATTEMPTS):
            revision = self._store.read().revision
            plan = make_plan()
            if plan.changes_nothing:
                return revision, plan
            try:
                committed = await self._store.commit(plan.change, expected_revision=revision)
            except Conflict:
                continue
            self._tell(plan, committed.revision)
            return committed.revision, plan
        raise to_exception(
            Failure(reason=Reason.INTERNAL, message=f"the configuration changed {_ATTEMPTS} times meanwhile")
        )

    def _tell(self, plan: Plan, revision: int) -> None:
        changes = [("created", plan.created), ("updated", plan.updated), ("deleted", plan.deleted)]
        for verb, names in changes:
            for name in names:
                kind = f"{name.partition('/')[0]}_{verb}"
                self._state.tell(Notice(kind=kind, subject=name, message=f"at revision {revision}"))


def backend_not_found(name: str) -> Failure:
    return Failure(reason=Reason.BACKEND_NOT_FOUND, message=f"there is no backend {name!r}")


def endpoint_not_found(name: str) -> Failure:
    return Failure(reason=Reason.ENDPOINT_NOT_FOUND, message=f"there is no endpoint {name!r}")
