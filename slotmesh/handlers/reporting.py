"""What a handler reports of itself: `slotmesh.report(kv_free=0.3)`, and the models that it has loaded.

Purpose: routers, and the balancers in them, get the newest values with the replica's capacity.
Invariants: callable in any thread. Bounded: `MAX_FIGURES` names and `MAX_MODELS` models. A value that has not changed
is not sent. Without a replica, `report` raises an error with the reason.
Owner: the replica sets `current_state` before it runs code of its handler; tests of handlers may, by
`slotmesh.testing`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from math import isfinite
from types import MappingProxyType
from typing import Final, SupportsFloat

from slotmesh.calls.handler_figures import (
    MAX_FIGURE_CHARS,
    MAX_FIGURES,
    MAX_MODEL_CHARS,
    MAX_MODELS,
    NO_FIGURES,
)

_OUTSIDE: Final = (
    "slotmesh.report() outside of a replica: report in a handler's methods, its constructor, or what they have started;"
    " in a test, slotmesh.testing.handler and mesh host a handler, and slotmesh.testing.reports() collects reports"
)


class HandlerState:
    """What one replica's handler reports. The readers' side is in `replica_service/shell/state_reports.py`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.figures: Mapping[str, float] = NO_FIGURES
        """The newest values by name. Replaced whole, never changed."""
        self.models: tuple[str, ...] = ()
        """Ids of the loaded models. Replaced whole."""
        self.figures_version = 0
        """Grows with each change of `figures`."""
        self.models_version = 0
        """Grows with each change of `models`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change, in the thread that has made it."""

    def report(self, values: Mapping[str, SupportsFloat | None]) -> None:
        """Replaces the values of these names; None removes one. All or none.

        Raises:
            TypeError: a value is no number.
            ValueError: a value is not finite, a name too long, or too many names.
        """
        given = {name: None if value is None else _figure(name, value) for name, value in values.items()}
        with self._lock:
            merged = {name: value for name, value in {**self.figures, **given}.items() if value is not None}
            if len(merged) > MAX_FIGURES:
                raise ValueError(
                    f"slotmesh.report: at most {MAX_FIGURES} names at a time, got {len(merged)}; name=None removes one"
                )
            if merged == self.figures:
                return
            self.figures = MappingProxyType(merged)
            self.figures_version += 1
        self.on_change()

    def loaded(self, models: Iterable[str]) -> None:
        """Replaces the loaded models; the first ones are reported, as far as the bounds allow."""
        with self._lock:
            self.models = tuple(_fitting(models))
            self.models_version += 1
        self.on_change()


def _fitting(models: Iterable[str]) -> Iterator[str]:
    left = MAX_MODEL_CHARS
    for model in islice(models, MAX_MODELS):
        left -= len(model)
        if left < 0:
            return
        yield model


def _figure(name: str, value: object) -> float:
    if not 0 < len(name) <= MAX_FIGURE_CHARS:
        raise ValueError(f"slotmesh.report: a name has 1 … {MAX_FIGURE_CHARS} characters, got {len(name)}")
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"slotmesh.report: {name} must be a number, got {type(value).__name__}")
    figure = float(value)
    if not isfinite(figure):
        raise ValueError(f"slotmesh.report: {name} must be finite, got {figure}")
    return figure


current_state: ContextVar[HandlerState | None] = ContextVar("slotmesh.report", default=None)
"""Set before code of a handler runs."""


class ProcessState:
    """The state of a process without a context of its own: threads that a handler starts have none."""

    def __init__(self) -> None:
        self.state: HandlerState | None = None


of_process = ProcessState()


def report(**figures: SupportsFloat | None) -> None:
    """Reports figures of this replica to all routers, for their balancers: `slotmesh.report(kv_free=0.3, jobs=7)`.

    Each call replaces the values of its names, and None removes a name. Routers get the newest values within about
    50 ms. It may be called anywhere in the replica's process: in methods, threads and tasks.

    Args:
        **figures: finite numbers; at most 32 names at a time, each of at most 64 characters.

    Raises:
        TypeError: a value is no number.
        ValueError: a value is not finite, a name is too long, or there are too many.
        RuntimeError: not in a replica.
    """
    own_state().report(figures)


def own_state() -> HandlerState:
    """The state of the replica that runs this code. Raises RuntimeError outside of one."""
    state = current_state.get() or of_process.state
    if state is None:
        raise RuntimeError(_OUTSIDE)
    return state
