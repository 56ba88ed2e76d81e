"""Members that hold a newer table than the store: then the store is an older copy, and nothing is decided.

Purpose: a state file that was put back, or copied with its launch directory, names other replicas and owners than those
that run. What it would order ends replicas and moves keys of a mesh that it does not know.
Invariants: nothing is reconciled or announced from the moment at which the first such member is found, for as long as
this process lives: that the member has left proves nothing. What operators change is stored, and takes no effect yet.
The next start finds the same members, and those that were launched by their records.
Owner: the event loop. Links and the launcher report members; the reconcile loop, shifts and members' streams ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from controller_service.core.lineage import HeldTable, is_newer
from controller_service.core.notices import EventKind, Notice
from controller_service.core.state_adoption import MembersMesh
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Store
from slotmesh.telemetry.log import get_logger

MAX_NAMED: Final = 16
"""Members that are named, at most."""

_log = get_logger(__name__)


class NewerMembers:
    """Those that were found."""

    def __init__(self, store: Store, state: MeshState) -> None:
        self._store = store
        self._state = state
        self._why: dict[str, str] = {}
        self.begun = asyncio.Event()
        """The first such member was found."""
        self.mesh: MembersMesh | None = None
        """The configuration of the newest table that a router has brought; None: none has."""
        self.disown: Callable[[], None] = lambda: None
        """Has the launcher drop its records of processes that another controller has started."""

    def __bool__(self) -> bool:
        """Whether there are any: then nothing is reconciled."""
        return bool(self._why)

    @property
    def reasons(self) -> tuple[str, ...]:
        """For people: each member and what it holds; empty if this controller reconciles."""
        return tuple(self._why.values())

    def version(self) -> HeldTable:
        """That of the store, as members and records of launches get it."""
        desired = self._store.read()
        return HeldTable(generation=self._store.generation, revision=desired.revision, term_id=desired.term_id)

    def is_newer(self, held: HeldTable) -> bool:
        """Whether a table does not follow from the store."""
        desired = self._store.read()
        return is_newer(held, generation=self._store.generation, revision=desired.revision, terms=desired.terms)

    def look_at(self, subject: str, held: HeldTable, mesh: MembersMesh | None = None) -> None:
        """A member, as `router/r`, has reported what it holds. `mesh`: the configuration of a router's newer table."""
        if not self.is_newer(held):
            return
        self.found(subject, f"holds revision {held.revision}, which this state file never had")
        if mesh is not None and (self.mesh is None or self.mesh.revision < held.revision):
            self.mesh = mesh

    def found(self, subject: str, what: str) -> None:
        """A member, or a process, is not this store's."""
        if subject in self._why or len(self._why) >= MAX_NAMED:
            return
        if not self._why:
            _log.error(
                "nothing is reconciled: members know a newer state than the state file, which is an older copy, or that"
                " of another mesh. Put the newest file back, or apply the newest mesh.yaml and decide with `slotmesh"
                " state adopt`",
                first=subject,
                revision=self._store.read().revision,
            )
        self._why[subject] = f"{subject} {what}"
        self.begun.set()
        self._state.tell(Notice(kind=EventKind.STATE_OUTDATED, subject=subject, message=what))
