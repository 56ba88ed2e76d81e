"""Passes what the handler reports of itself to the links of routers.

Purpose: a handler may report at any rate, and in any thread; each router gets the newest state, `REPORT_GAP_S` apart.
Invariants: a state that was reported is due at each link within the gap; a link that opens gets the state once.
Owner: the engine, on its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from replica_service.convert.reports import handler_state_to_wire
from slotmesh.handlers.reporting import HandlerState
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.runtime.tasks import call_here_or_on

REPORT_GAP_S: Final = 0.05
"""Routers are notified of changes at most this often."""


class StateCursor:
    """What one router has of the state."""

    __slots__ = ("_evicted", "_figures", "_models", "_state")

    def __init__(self, state: HandlerState) -> None:
        self._state = state
        self._figures = self._models = 0
        """Versions that were sent."""
        self._evicted = state.evictions
        """Evictions that were sent, or were before the link."""

    def next(self) -> replica_service_pb2.HandlerState | None:
        """Returns what has changed since the previous call; None if nothing has."""
        state = self._state
        figures, models = state.figures_version, state.models_version
        evicted, evictions = state.evicted_since(self._evicted)
        if (figures, models, evictions) == (self._figures, self._models, self._evicted):
            return None
        loaded = None if models == self._models else state.models
        wire = handler_state_to_wire(state.figures, loaded, state.max_models, state.load_s, evicted)
        self._figures, self._models, self._evicted = figures, models, evictions
        return wire


class StateReports:
    """Calls `announce` on the engine's loop when the state has changed, at most once per gap."""

    def __init__(self, state: HandlerState, announce: Callable[[], None]) -> None:
        """To be called on the engine's loop."""
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._next_at = 0.0
        self._is_due = False
        """`announce` will be called for a change. Set in any thread: a change after it was reset sets it again."""
        self._timer: asyncio.TimerHandle | None = None
        state.on_change = self._changed

    def close(self) -> None:
        """No more calls of `announce`."""
        self._is_due = True
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self) -> None:
        if not self._is_due:
            self._is_due = True
            call_here_or_on(self._loop, self._wait)

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._next_at, self._pass_on)

    def _pass_on(self) -> None:
        self._is_due = False
        self._next_at = self._loop.time() + REPORT_GAP_S
        self._announce()
