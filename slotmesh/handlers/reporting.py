"""What a handler reports of itself: `slotmesh.report(kv_free=0.3)`, and the models that it has loaded.

Purpose: routers, and the balancers in them, get the newest values with the replica's capacity. They also get the blocks
of prompts that the handler has evicted from its cache.
Invariants: callable in any thread. Bounded: `MAX_FIGURES` names, `MAX_MODELS` models, `MAX_EVICTED` blocks. A value
that has not changed is not sent. Without a replica, `report` and its like raise an error with the reason.
Owner: the replica sets `current_state` before it runs code of its handler; tests of handlers may, by
`slotmesh.testing`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from math import inf, isfinite
from operator import index
from types import MappingProxyType
from typing import Final, SupportsFloat

from slotmesh.calls.handler_figures import (
    MAX_EVICTED,
    MAX_FIGURE_CHARS,
    MAX_FIGURES,
    MAX_MODEL_CHARS,
    MAX_MODELS,
    NO_FIGURES,
    Evicted,
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
        self.max_models = 0
        """The number of models that are loaded at most; 0: the handler loads none by id."""
        self.load_s = 0.0
        """The mean time of a load; 0 before the first one."""
        self.figures_version = 0
        """Grows with each change of `figures`."""
        self.models_version = 0
        """Grows with each change of `models`."""
        self.evictions = 0
        """Blocks that were evicted, and one more for each time that all were."""
        self._log: deque[int] = deque(maxlen=MAX_EVICTED)
        """The last ones of these that were evicted since all were."""
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

    def evicted(self, blocks: Iterable[int]) -> None:
        """The handler holds these blocks no longer. Raises TypeError or ValueError if one of them is no hash."""
        try:
            hashes = [index(each) for each in blocks]
        except TypeError as error:
            raise TypeError(f"slotmesh.report_evicted takes hashes, which are integers: {error}") from None
        if wrong := [each for each in hashes if not 0 <= each < 2**64]:
            raise ValueError(f"slotmesh.report_evicted: a hash is 0 … 2⁶⁴-1, got {wrong[0]}")
        if not hashes:
            return
        with self._lock:
            self._log.extend(hashes)
            self.evictions += len(hashes)
        self.on_change()

    def all_evicted(self) -> None:
        """The handler holds no block."""
        with self._lock:
            self._log.clear()
            self.evictions += 1
        self.on_change()

    def evicted_since(self, evictions: int) -> tuple[Evicted, int]:
        """What was evicted since `evictions` were, and how many there are now. All, if it is more than is kept."""
        with self._lock:
            new, kept = self.evictions - evictions, len(self._log)
            blocks = tuple(islice(self._log, max(0, kept - new), kept))
            return Evicted(blocks, is_all=new > kept), self.evictions


def _fitting(models: Iterable[str]) -> Iterator[str]:
    left = MAX_MODEL_CHARS
    for model in islice(models, MAX_MODELS):
        left -= len(model)
        if left < 0:
            return
        yield model


def _figure(name: str, value: object) -> float:
    if not 0 < len(name) <= MAX_FIGURE_CHARS or not name.isprintable():
        raise ValueError(f"slotmesh.report: a name has 1 … {MAX_FIGURE_CHARS} printable characters, got {name[:100]!r}")
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"slotmesh.report: {name} must be a number, got {type(value).__name__}")
    try:
        figure = float(value)
    except OverflowError:  # an integer beyond all floats
        figure = inf
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


def report_evicted(blocks: Iterable[int]) -> None:
    """Reports that this replica's cache holds these blocks of prompts no longer.

    Without such reports routers only know where calls were sent. It may be called anywhere in the replica's process.

    Args:
        blocks: hashes, as `slotmesh.prefix_blocks` makes them, or as the callers' `prefix_blocks` are. Of more than
            16,384 in 50 ms, routers only learn that all were evicted.

    Raises:
        TypeError, ValueError: a block is no hash.
        RuntimeError: not in a replica.
    """
    own_state().evicted(blocks)


def report_evicted_all() -> None:
    """Reports that this replica's cache is empty.

    Raises:
        RuntimeError: not in a replica.
    """
    own_state().all_evicted()


def own_state() -> HandlerState:
    """The state of the replica that runs this code. Raises RuntimeError outside of one."""
    state = current_state.get() or of_process.state
    if state is None:
        raise RuntimeError(_OUTSIDE)
    return state
