"""Finds silent replicas whose processes have ended: those that ran on this machine, and those that fence themselves.

Purpose: silence proves nothing, but the end of a process does: its partitions can move, and its calls fail.
Invariants: nothing follows from a fence while there are newer members: another controller may acknowledge its reports.
Owner: one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from controller_service.core.fences import fenced
from controller_service.core.observed import Observed
from controller_service.core.partitions import Incarnation
from controller_service.shell.mesh_state import MeshState
from slotmesh.runtime.process_identity import has_ended

LOOK_EVERY_S: Final = 1.0


class ProcessWatch:
    """Reports processes that have ended."""

    def __init__(
        self,
        state: MeshState,
        *,
        is_on_hold: Callable[[], bool] = lambda: False,
        has_ended: Callable[[str], bool] = has_ended,
    ) -> None:
        """`is_on_hold`: whether this controller has found members that are newer than its store."""
        self._state = state
        self._is_on_hold = is_on_hold
        self._since = -inf
        """When this controller was on hold last."""
        self._has_ended = has_ended

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Checks all that are silent, once."""
        for owner, process in suspects(self._state.observed).items():
            if self._has_ended(process):
                self._state.replica_ended(owner, "its process has ended")
        now = self._state.clock.now()
        if self._is_on_hold():
            self._since = now
        for owner, silent_s in fenced(self._state.observed, now, since=self._since).items():
            self._state.replica_ended(owner, f"it has fenced itself: it was silent for {silent_s:.0f} s")


def suspects(observed: Observed) -> dict[Incarnation, str]:
    """The processes of silent replicas that were not started here, and are not known to have ended."""
    return {
        replica.owner: replica.process
        for replica in observed.incarnations()
        if replica.process and replica.suspect_since is not None and not replica.gone and not replica.launched
    }
