"""Stores the records of rollouts and the settings that they go back to, and carries out operators' orders for them.

Invariants: a rollout that is taken back is one transaction: settings, record and history; it is announced after the
store has it. Where an operator was faster, nothing is stored: the change of the store has the backend looked at again.
Orders are answered after the store has them; the progress of a rollout follows from the store and the replicas.
Owner: the reconcile loop; for `RolloutControl` the servicer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.revisions import BY_CONTROLLER, ChangeOrigin, taken_back_note
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord, restored
from controller_service.core.events import EventKind, Notice
from controller_service.core.observed.state import Restarts, wanted_replicas
from controller_service.core.observed.transitions import Transition
from controller_service.core.reconciling.rollouts import EndedCalls, RolloutProgress, RolloutStep, begun, show_progress
from controller_service.shell.changes.idempotency import answer_now, require_new
from controller_service.shell.changes.refusals import backend_not_found, not_stored
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.store.protocol import Conflict, Store, StoreWriteFailed
from slotmesh.spec.model import Backend, InvalidSpec, SpecViolation
from slotmesh.status import to_exception


class RolloutMemory:
    """Commits steps of rollouts."""

    def __init__(self, store: Store, state: MeshState) -> None:
        self._store = store
        self._state = state

    async def remember(self, desired: Desired, name: str, step: RolloutStep) -> None:
        """Stores a step that was planned with `desired`."""
        record, good = step.record, step.goes_back_to
        if record is None:
            return
        change = ChangeSet(put_rollouts=(record,))
        if good is not None:
            origin = ChangeOrigin(who=BY_CONTROLLER, time_s=self._state.clock.time_of_day(), note=taken_back_note(name))
            backend = restored(desired.backends[name], good)
            change = ChangeSet(put_rollouts=(record,), put_backends=(backend,), origin=origin)
        try:
            await self._store.commit(change, expected_revision=desired.revision)
        except Conflict:
            self._state.wake(Key(Concern.BACKEND, name))
            return
        taken_back = desired.backends[name]
        if good is not None:  # if it is applied again, that is a new try, which starts without delay
            observed = self._state.observed.with_restarts(name, template_of(taken_back), Restarts())
            self._state.apply(Transition(observed))
        self._state.publish(_notice(record, taken_back, good))


def _notice(record: RolloutRecord, backend: Backend, good: Backend | None) -> Notice:
    subject = f"backend/{backend.name}"
    if good is not None:
        message = f"{_named(backend)} is taken back, {_named(good)} is in force again: {record.why}"
        return Notice(kind=EventKind.ROLLOUT_TAKEN_BACK, subject=subject, message=message)
    if record.is_complete:
        return Notice(kind=EventKind.ROLLOUT_COMPLETE, subject=subject, message=f"all replicas run {_named(backend)}")
    return Notice(
        kind=EventKind.ROLLOUT_STARTED, subject=subject, message=f"replicas are replaced by {_named(backend)}"
    )


def _named(backend: Backend) -> str:
    """The name of its settings, for a person."""
    return f"{backend.handler} {backend.version}".strip()


class RolloutControl:
    """Looks at rollouts, and holds them."""

    def __init__(
        self, store: Store, state: MeshState, ended_calls: Mapping[str, EndedCalls], *, launches: bool
    ) -> None:
        """`ended_calls` is read each time. `launches`: whether this controller starts replicas."""
        self._store = store
        self._state = state
        self._ended_calls = ended_calls
        self._launches = launches

    def show(self, name: str = "") -> list[tuple[Backend, RolloutProgress]]:
        """That of a backend, or all, by name. Raises BackendNotFound."""
        desired = self._store.read()
        if name and name not in desired.backends:
            raise to_exception(backend_not_found(name))
        names = ([name] if name else sorted(desired.backends)) if self._launches else []
        return [(desired.backends[it], self._progress(desired.backends[it])) for it in names]

    async def hold(self, name: str, origin: ChangeOrigin, *, is_paused: bool) -> None:
        """Pauses a rollout, or lets it go on, as `origin` asked. Raises BackendNotFound, InvalidSpec."""
        if not self._launches:
            text = "this controller starts no replicas: pause the rollout in the system that starts them"
            raise InvalidSpec([SpecViolation("backend", text)])
        while True:
            desired, now_s = self._store.read(), self._state.clock.time_of_day()
            require_new(desired.answers, now_s)
            backend = desired.backends.get(name)
            if backend is None:
                raise to_exception(backend_not_found(name))
            present = begun(desired.rollouts.get(name), backend, now_s)
            record = replace(present, is_paused=is_paused)
            if record == desired.rollouts.get(name):
                return
            try:
                answer = answer_now(lambda kind: kind(), now_s)
                change = ChangeSet(put_rollouts=(record,), origin=origin, answer=answer)
                await self._store.commit(change, expected_revision=desired.revision)
            except Conflict:
                continue
            except StoreWriteFailed as failed:
                raise to_exception(not_stored(failed)) from failed
            return

    def _progress(self, backend: Backend) -> RolloutProgress:
        return show_progress(
            self._store.read().rollouts.get(backend.name),
            backend,
            wanted_replicas(backend, self._state.observed),
            [*self._state.observed.replicas(backend.name)],
            self._state.clock.now(),
            time_of_day_s=self._state.clock.time_of_day(),
            ended_calls=self._ended_calls,
        )
