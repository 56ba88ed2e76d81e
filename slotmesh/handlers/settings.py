"""What the decorators say about a handler: frozen values, checked where they are written.

Invariant: a settings object that exists is sound; a wrong value raises TypeError or ValueError with the value in it.
Pure: the replica's core reads these.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

MAX_ONGOING_LIMIT = 1_000_000
"""The largest `max_ongoing`."""
MAX_BATCH_SIZE_LIMIT = 100_000
"""The largest `max_batch_size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How calls of one method become batches."""

    max_batch_size: int = 10
    """Calls in a batch, at most."""
    batch_wait_timeout_s: float = 0.01
    """Seconds that the first call of a batch waits for others."""
    max_concurrent_batches: int = 1
    """Batches that run at the same time."""

    def __post_init__(self) -> None:
        check_int("max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE_LIMIT)
        check_int("max_concurrent_batches", self.max_concurrent_batches, 1, MAX_ONGOING_LIMIT)
        wait: Any = self.batch_wait_timeout_s
        if isinstance(wait, bool) or not isinstance(wait, int | float):
            raise TypeError(f"batch_wait_timeout_s must be a number of seconds, got {wait!r}")
        if not isfinite(wait) or wait < 0:
            raise ValueError(f"batch_wait_timeout_s must be finite and not negative, got {wait!r}")

    @property
    def most_calls(self) -> int:
        """Calls that all concurrent batches hold together."""
        return self.max_batch_size * self.max_concurrent_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSettings:
    """What a handler asks for. None: it follows from the handler's methods."""

    max_ongoing: int | None = None
    """Calls that one replica executes at once."""
    prefetch: int | None = None
    """Calls without an ordering key that may wait at a replica behind the running ones."""

    def __post_init__(self) -> None:
        if self.max_ongoing is not None:
            check_int("max_ongoing", self.max_ongoing, 1, MAX_ONGOING_LIMIT)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, 0, MAX_ONGOING_LIMIT)


def check_int(name: str, value: Any, low: int, high: int) -> None:
    """Raises TypeError or ValueError, naming the setting and the value."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} … {high:,}, got {value!r}")
