"""Changes of the desired state that operators request.

Invariants: each request is planned against the revision that it changes; if another change was faster, it is planned
anew; it is answered, and announced, only after the store has it. What is reported of it comes from the commit
(`mesh_state.ChangeJournal`), not from the request.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from controller_service.convert.changes import reply_of
from controller_service.core.desired.handler_code import (
    NO_CODE,
    Code,
    CodeChange,
    HandlerCode,
    absent_if_unread,
    key_of,
    warnings_of,
    with_code,
)
from controller_service.core.desired.planning import (
    ALWAYS,
    ChangeTerms,
    Plan,
    confirmed_rollouts,
    lacking,
    plan_file,
    plan_mesh,
    with_effects,
)
from controller_service.core.desired.rollback import plan_rollback, plan_undo_of_change, plan_undo_of_rollout
from controller_service.core.desired.shifts import intended_endpoints
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.reconciling.endpoints import require_ready, rising
from controller_service.core.reconciling.rollouts import begun
from controller_service.core.reconciling.shift_planning import hold_back, with_stopped_shift
from controller_service.shell.changes.device_checks import no_checks
from controller_service.shell.changes.requests import (
    AlreadyAnswered,
    ConfigurationBounds,
    answer_now,
    apply_conflict,
    changed_too_often,
    code_not_kept,
    known_backend,
    not_stored,
    plan_deletion,
    require_etags,
    require_new,
    revision_conflict,
)
from controller_service.shell.code.project_files import CannotSnapshot
from controller_service.shell.code.snapshot_keeper import CodeSnapshots, secret_files
from controller_service.shell.code.writing import CodeChanged
from controller_service.shell.launchers.protocol import Launcher
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Conflict, Store, StoreWriteFailed
from slotmesh.logs import get_logger
from slotmesh.spec.descriptor_sets import services_violations
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, Mesh, SpecViolation
from slotmesh.spec.routes import Route
from slotmesh.spec.rules import show
from slotmesh.status import to_exception

_log = get_logger(__name__)

MakePlan: TypeAlias = Callable[[Desired], Plan]
_CODE_ATTEMPTS: Final = 5
_CHANGING: Final = "the files of the handlers change while they are read"
_ATTEMPTS: Final = 100
"""Each failed attempt means that another change went through."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What a request came to."""

    revision: int
    """The configuration's revision that has the change; the present one if nothing changes, or is only validated."""
    plan: Plan


class Configurator:
    """Plans and commits.

    Every method raises RevisionConflict where the configuration has changed since the revision that the terms expect.
    """

    def __init__(
        self,
        store: Store,
        state: MeshState,
        *,
        launches: bool,
        policies: Collection[str] = frozenset(),
        snapshots: CodeSnapshots | None = None,
    ) -> None:
        """`policies`: names of functions that backends may name in `autoscale`.

        `snapshots` are those of handlers' code; None: this controller starts no replicas.
        """
        self._on_applied: Callable[[], object] = lambda: None
        self._launcher, self._policies, self._snapshots = Launcher(), policies, snapshots
        self._store, self._state, self._launches = store, state, launches
        self._bounds = ConfigurationBounds()
        self.devices = no_checks()

    def led_by(self, on_applied: Callable[[], object], launcher: Launcher) -> None:
        """`on_applied` is called when a mesh was applied, whether it changed anything or not."""
        self._on_applied, self._launcher = on_applied, launcher
        if not launcher.imports_snapshots:
            self._snapshots = None

    async def apply_mesh(
        self, mesh: Mesh, terms: ChangeTerms = ALWAYS, *, prune: bool = False, found: Collection[SpecViolation] = ()
    ) -> PlannedChange:
        """Creates and updates, with `prune` also deletes. Raises InvalidSpec; `found` are violations seen before."""

        def plan(code: Code, desired: Desired) -> Plan:
            filled, violations = with_code(desired, mesh, code)
            return self._held(desired, self._plan(desired, filled, prune=prune, found=[*found, *violations]), terms)

        return await self._apply(mesh, plan, terms)

    async def apply_file(
        self,
        mesh: Mesh,
        terms: ChangeTerms = ALWAYS,
        *,
        prune: bool = False,
        force: bool = False,
        keep: bool = False,
        found: Collection[SpecViolation] = (),
    ) -> PlannedChange:
        """Merges a file that may have been applied before.

        Of conflicts, the file wins with `force`. `keep`: it is the file of `--spec`, which does not, and changes all
        else. Raises InvalidSpec, and ApplyConflict without either.
        """
        mesh = replace(mesh, backends=tuple(replace(it, code="") for it in mesh.backends))

        def plan(code: Code, desired: Desired) -> Plan:
            all_found = [*found, *lacking(desired, mesh, self._policies, self._launcher.violations)]
            merged = plan_file(
                desired,
                mesh,
                prune=prune,
                launches=self._launches,
                force=force,
                found=all_found,
                code=code,
                is_spec=keep,
            )
            if merged.conflicts and not (terms.validate_only or keep):
                raise to_exception(apply_conflict(merged.conflicts))
            return self._held(desired, merged, terms)

        return await self._apply(mesh, plan, terms, keeps=keep)

    async def apply_backend(
        self, edit: Callable[[Backend | None], tuple[Backend, list[SpecViolation]]], name: str, terms: ChangeTerms
    ) -> PlannedChange:
        """Makes a backend what `edit` makes of it; None: it is not there. Raises what that raises, and InvalidSpec."""

        def plan(code: Code, desired: Desired) -> Plan:
            backend, found = edit(desired.backends.get(name))
            filled, violations = with_code(desired, Mesh(backends=(backend,)), code)
            return self._held(desired, self._plan(desired, filled, found=[*found, *violations]), terms)

        backend, _ = edit(self._store.read().backends.get(name))
        return await self._apply(Mesh(backends=(backend,)), plan, terms)

    async def apply_endpoint(
        self,
        edit: Callable[[Endpoint | None], Endpoint],
        name: str,
        terms: ChangeTerms = ALWAYS,
        *,
        moves: bool = True,
        requires_ready: bool = False,
    ) -> PlannedChange:
        """Makes an endpoint what `edit` makes of it; None: it is not there. Raises what that raises, and InvalidSpec.

        `moves`: its weights are given. They are in force immediately, and end a shift. `requires_ready`: it is refused
        if a backend that gets more calls has no ready replica.
        """

        def plan(desired: Desired) -> Plan:
            known = desired.endpoints if moves else intended_endpoints(desired.endpoints, desired.shifts)
            wanted, live = edit(known.get(name)), desired.endpoints.get(name)
            found = services_violations(f"endpoints.{show(name)}", wanted.grpc_services)
            planned = self._plan(desired, Mesh(endpoints=(wanted,)), found=[*found], replaces=(name,))
            if requires_ready and wanted.traffic is not None:
                self.require_ready(desired, name, rising(None if live is None else live.traffic, wanted.traffic))
            if moves and live is not None and _weights(wanted) == _weights(live):
                who, time_s = terms.origin.who, self._state.clock.time_of_day()
                planned = with_stopped_shift(desired, planned, name, who=who, time_s=time_s)
            return self._held(desired, planned, terms, immediately=(name,) if moves else ())

        return await self._commit(terms, plan)

    def require_ready(self, desired: Desired, endpoint: str, backends: Collection[str]) -> None:
        """Raises InvalidSpec, which names each of these that has no ready replica."""
        observed, now = self._state.observed, self._state.clock.now()
        require_ready(desired, observed, endpoint, backends, launches=self._launches, now=now)

    async def delete(self, subjects: Sequence[str], terms: ChangeTerms = ALWAYS) -> PlannedChange:
        """Deletes all of these, in one change, or none. Raises NotFound, BackendInUse, InvalidSpec."""
        return await self.change(lambda desired: plan_deletion(desired, subjects), terms)

    async def apply_route(self, edit: Callable[[Route | None], Route], path: str, terms: ChangeTerms) -> PlannedChange:
        """Makes a route what `edit` makes of it; None: it is not there. Raises what that raises, and InvalidSpec."""
        return await self.change(
            lambda desired: self._plan(desired, Mesh(routes=(edit(desired.routes.get(path)),))), terms
        )

    async def undo_rollout(self, name: str, terms: ChangeTerms = ALWAYS) -> PlannedChange:
        """Brings back what replicas were started with before. Raises BackendNotFound, InvalidSpec."""
        return await self.change(lambda it: plan_undo_of_rollout(it, known_backend(it, name).name), terms)

    async def hold_rollout(self, name: str, terms: ChangeTerms, *, is_paused: bool) -> PlannedChange:
        """Pauses a rollout, or resumes it. Raises BackendNotFound, InvalidSpec."""
        if not self._launches:
            text = "this controller starts no replicas: pause the rollout in the system that starts them"
            raise InvalidSpec([SpecViolation("backend", text)])

        def plan(desired: Desired) -> Plan:
            known, backend = desired.rollouts.get(name), known_backend(desired, name)
            record = replace(begun(known, backend, self._state.clock.time_of_day()), is_paused=is_paused)
            return Plan(change=ChangeSet() if record == known else ChangeSet(put_rollouts=(record,)))

        return await self.change(plan, terms)

    async def roll_back(self, revision: int, terms: ChangeTerms = ALWAYS, *, undoes: bool = False) -> PlannedChange:
        """Makes backends, endpoints and routes what they were at a revision. Raises InvalidSpec.

        `undoes`: what they were before the newest change, which must be that of the revision.
        """
        make_plan = plan_undo_of_change if undoes else plan_rollback

        def plan(desired: Desired) -> Plan:
            return self._held(desired, make_plan(desired, revision, launches=self._launches), terms)

        return await self._commit(terms, plan, is_large=True)

    async def change(self, make_plan: MakePlan, terms: ChangeTerms = ALWAYS) -> PlannedChange:
        """Commits the plan that `make_plan` makes, anew for each revision. Raises what that raises."""
        return await self._commit(terms, make_plan)

    async def _apply(
        self, mesh: Mesh, plan: Callable[[Code, Desired], Plan], terms: ChangeTerms, *, keeps: bool = False
    ) -> PlannedChange:
        """Commits the plan that follows from what handlers' code is now; it may change until it was copied.

        `keeps`: backends that run keep their code if that of now cannot be read, as a controller has to start.
        """

        def warned(code: Code, desired: Desired) -> Plan:
            planned = plan(code, desired)
            return replace(
                planned, warnings=warnings_of(desired, mesh, code), code=self._code_changes(desired, planned)
            )

        handlers = {key_of(it) for it in mesh.backends if it.handler}
        for attempt in range(_CODE_ATTEMPTS + keeps):
            code = NO_CODE
            if handlers and self._launches and self._snapshots is not None:
                secrets = secret_files([*mesh.backends, *self._store.read().backends.values()])
                code = await asyncio.to_thread(self._snapshots.versions_of, handlers, secrets)
            if attempt == _CODE_ATTEMPTS:
                code = dict.fromkeys(code, HandlerCode(problem=_CHANGING))
            if keeps:
                _warn_of_unread(code)
                code = absent_if_unread(code)
            try:
                changed = await self._commit(terms, partial(warned, code), is_large=True, code=code)
            except CodeChanged:
                continue
            except AlreadyAnswered:
                self._on_applied()  # the controller that has answered it may have ended right after that
                raise
            if not terms.validate_only:
                self._on_applied()
            return changed
        raise InvalidSpec([SpecViolation("backends", f"{_CHANGING}: apply it again")])

    def _code_changes(self, desired: Desired, plan: Plan) -> tuple[CodeChange, ...]:
        differing: dict[tuple[str, str], list[str]] = {}
        for it in plan.change.put_backends:
            live = desired.backends.get(it.name)
            before = "" if live is None else live.code
            if it.code and it.code != before:
                differing.setdefault((before, it.code), []).append(it.name)
        return () if self._snapshots is None or not differing else self._snapshots.changes(differing)

    async def _keep_code(self, desired: Desired, plan: Plan, code: Code) -> None:
        """Has the snapshots of what the plan brings, and those of what is there, as far as it was applied again."""
        if self._snapshots is None or not self._launches:
            return
        live = {it.code for it in desired.backends.values()}
        found = {it.code for it in code.values()}
        codes = ({it.code for it in plan.change.put_backends} - live | found & live) - {""}
        try:
            if codes:
                await asyncio.to_thread(self._snapshots.keep, codes & found, earlier=codes - found)
        except CannotSnapshot as error:
            raise to_exception(code_not_kept(str(error))) from error

    def _plan(
        self,
        desired: Desired,
        mesh: Mesh,
        *,
        prune: bool = False,
        replaces: Collection[str] = (),
        found: Collection[SpecViolation] = (),
    ) -> Plan:
        found = [*found, *lacking(desired, mesh, self._policies, self._launcher.violations)]
        plan = plan_mesh(desired, mesh, prune=prune, launches=self._launches, replaces=replaces, found=found)
        return replace(plan, change=replace(plan.change, put_rollouts=confirmed_rollouts(desired, mesh.backends)))

    def _held(self, desired: Desired, plan: Plan, terms: ChangeTerms, *, immediately: Collection[str] = ()) -> Plan:
        """The plan, without traffic that has to wait for a rollout."""
        who, time_s = terms.origin.who, self._state.clock.time_of_day()
        return hold_back(desired, plan, launches=self._launches, who=who, time_s=time_s, immediately=immediately)

    async def _commit(
        self, terms: ChangeTerms, make_plan: MakePlan, *, is_large: bool = False, code: Code = NO_CODE
    ) -> PlannedChange:
        """`is_large`: the plan may be of thousands of resources. It is made of values alone: a thread makes it."""
        for _ in range(_ATTEMPTS):
            desired = self._store.read()
            require_new(desired.answers, self._state.clock.time_of_day())
            if (expected := terms.expected_revision) is not None and expected != desired.configured_at:
                raise to_exception(revision_conflict(expected, desired.configured_at))
            require_etags(desired, terms.etags)
            if is_large:
                plan = await asyncio.to_thread(self._bounded, make_plan, desired)
            else:
                plan = with_effects(desired, make_plan(desired), launches=self._launches)
                self._bounds.require_kept(desired, plan.change)
            if is_large and _decides_alike(desired, self._store.read()):
                desired = self._store.read()  # owners of partitions, and the like, have changed meanwhile
            plan = self.devices.checked(desired, plan)
            if not terms.validate_only:
                await self._keep_code(desired, plan, code)
            signed = self._signed(desired, plan, terms)
            if terms.validate_only or (plan.changes_nothing and signed.answer is None):
                return PlannedChange(desired.configured_at, plan)
            try:
                committed = await self._store.commit(signed, expected_revision=desired.revision)
            except Conflict:
                continue
            except StoreWriteFailed as failed:
                raise to_exception(not_stored(failed)) from failed
            return PlannedChange(committed.configured_at, plan)
        raise to_exception(changed_too_often(_ATTEMPTS))

    def _bounded(self, make_plan: MakePlan, desired: Desired) -> Plan:
        """In a thread: the plan, if the configuration that it leads to can be delivered. Raises InvalidSpec."""
        plan = with_effects(desired, make_plan(desired), launches=self._launches)
        ConfigurationBounds().require_kept(desired, plan.change)
        return plan

    def _signed(self, desired: Desired, plan: Plan, terms: ChangeTerms) -> ChangeSet:
        """The change, with who asked for it and when, and what that is answered."""
        time_s = self._state.clock.time_of_day()
        revision = desired.configured_after(plan.change)
        return replace(
            plan.change,
            origin=replace(terms.origin, time_s=time_s, note=plan.note, part_of=plan.part_of),
            answer=answer_now(lambda kind: reply_of(kind, revision, plan), time_s),
        )


def _warn_of_unread(code: Code) -> None:
    for problem in sorted({it.problem for it in code.values() if it.problem and not it.is_absent}):
        _log.warning("the code of handlers cannot be read: what runs keeps its own", problem=problem)


def _weights(endpoint: Endpoint) -> Mapping[str, float]:
    return {} if endpoint.traffic is None else endpoint.traffic.weights


def _decides_alike(one: Desired, other: Desired) -> bool:
    """Whether a plan that holds for one holds for the other: it is made of what operators have configured."""
    return one.configured_at == other.configured_at and all(
        a is b for a, b in ((one.applied, other.applied), (one.rollouts, other.rollouts), (one.shifts, other.shifts))
    )
