"""Stores what has to be remembered of rollouts, and the settings that a rollout goes back to.

Invariants: a rollout that is taken back is one transaction: settings, record and history; it is announced after the
store has it. Where an operator was faster, nothing is stored: the change of the store has the backend looked at again.
Owner: the reconcile loop.
"""

from __future__ import annotations

from controller_service.core.desired import ChangeSet, Desired
from controller_service.core.notices import EventKind, Notice
from controller_service.core.revisions import BY_CONTROLLER, ChangeOrigin, taken_back_note
from controller_service.core.rollouts.progress import RolloutStep
from controller_service.core.rollouts.record import RolloutRecord, restored
from controller_service.shell.mesh_state import Concern, Key, MeshState
from controller_service.store.protocol import Conflict, Store
from slotmesh.spec.model import Backend


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
        self._state.tell(_notice(record, desired.backends[name], good))


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
    """What a person tells its settings by."""
    return f"{backend.handler} {backend.version}".strip()
