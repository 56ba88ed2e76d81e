"""Settings of the decorators of handlers: frozen values, checked when they are created.

Invariant: an existing settings object is valid; an invalid value raises TypeError or ValueError with the value in it.
Pure: the replica's core reads these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from sys import float_info
from typing import Any, Final

MAX_ONGOING_LIMIT = 1_000_000
"""The largest `max_ongoing`."""
MIN_SECONDS = 0.01
"""The shortest period or timeout of a health check."""
MAX_BATCH_SIZE_LIMIT = 100_000
"""The largest `max_batch_size` if it counts calls."""
MAX_BATCH_WEIGHT_LIMIT = 2**53
"""The largest `max_batch_size` if it bounds the sum of the calls' weights."""
MIN_BLOCKED_AFTER_S = 0.05
"""The shortest `blocked_after_s`: on a busy machine any thread pauses for shorter times."""
MAX_BLOCKED_AFTER_S = 3600.0
"""The longest `blocked_after_s`."""
WEIGHED_BATCH_CALLS = 512
"""The assumed number of calls in a batch that is bounded by weight."""

_LARGEST_S: Final = float_info.max
"""The limit for integers, which may be larger than any float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How calls of one method become batches."""

    max_batch_size: int = 10
    """The largest number of calls in a batch; with `batch_size_fn`, the largest sum of their weights."""
    batch_wait_timeout_s: float = 0.01
    """Seconds that the first call of a batch waits for others."""
    max_concurrent_batches: int = 1
    """Batches that run at the same time."""
    batch_size_fn: Callable[..., int | float] | None = None
    """Computes the weight of a call from its arguments. None: each call weighs 1."""

    def __post_init__(self) -> None:
        size_fn: Any = self.batch_size_fn
        if size_fn is not None and not callable(size_fn):
            raise TypeError(f"batch_size_fn must be a function of an item, or None, got {size_fn!r}")
        set_field = object.__setattr__
        size = checked_max_batch_size(self.max_batch_size, is_weight=size_fn is not None)
        set_field(self, "max_batch_size", size)
        set_field(self, "max_concurrent_batches", checked_max_concurrent_batches(self.max_concurrent_batches))
        check_batch_wait_timeout_s(self.batch_wait_timeout_s)

    @property
    def calls(self) -> int:
        """The number of calls in a full batch; an estimate if calls are weighed."""
        return self.max_batch_size if self.batch_size_fn is None else min(self.max_batch_size, WEIGHED_BATCH_CALLS)

    @property
    def most_calls(self) -> int:
        """The number of calls in all concurrent batches; an estimate if calls are weighed."""
        return self.calls * self.max_concurrent_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSettings:
    """Settings of a handler. None: derived from the handler's methods."""

    max_ongoing: int | None = None
    """Calls that one replica executes at the same time."""
    prefetch: int | None = None
    """Calls without an ordering key that may wait at a replica behind the running ones."""
    health_check_period_s: float = 10.0
    """The interval of calls of `check_health`, if the handler has it."""
    health_check_timeout_s: float = 30.0
    """The timeout of `check_health`."""
    own_loop: bool = False
    """Run `async def` methods on a separate event loop, in a separate thread."""
    blocked_after_s: float = 0.5
    """A method that blocks its event loop for longer is reported; 0: none is."""

    def __post_init__(self) -> None:
        own_loop: Any = self.own_loop
        if not isinstance(own_loop, bool):
            raise TypeError(f"own_loop must be True or False, got {own_loop!r}")
        check_blocked_after_s(self.blocked_after_s)
        if self.max_ongoing is not None:
            check_int("max_ongoing", self.max_ongoing, 1, MAX_ONGOING_LIMIT)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, 0, MAX_ONGOING_LIMIT)
        check_positive_s("health_check_period_s", self.health_check_period_s)
        check_positive_s("health_check_timeout_s", self.health_check_timeout_s)


def check_blocked_after_s(value: Any) -> None:
    """Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"blocked_after_s must be a number of seconds, got {value!r}")
    if value and not MIN_BLOCKED_AFTER_S <= value <= MAX_BLOCKED_AFTER_S:
        raise ValueError(
            f"blocked_after_s must be {MIN_BLOCKED_AFTER_S} … {MAX_BLOCKED_AFTER_S:,} seconds, or 0, got {value!r}"
        )


def checked_max_batch_size(value: Any, *, is_weight: bool) -> int:
    """The size as an integer; a float with an integral value is accepted. Raises TypeError or ValueError."""
    return _whole("max_batch_size", value, 1, MAX_BATCH_WEIGHT_LIMIT if is_weight else MAX_BATCH_SIZE_LIMIT)


def checked_max_concurrent_batches(value: Any) -> int:
    """The number as an integer; a float with an integral value is accepted. Raises TypeError or ValueError."""
    return _whole("max_concurrent_batches", value, 1, MAX_ONGOING_LIMIT)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    number: Any = int(value) if isinstance(value, float) and value.is_integer() else value
    check_int(name, number, low, high)
    return int(number)


def check_batch_wait_timeout_s(value: Any) -> None:
    """Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"batch_wait_timeout_s must be a number of seconds, got {value!r}")
    if not 0 <= value <= _LARGEST_S:
        raise ValueError(f"batch_wait_timeout_s must be finite and not negative, got {value!r}")


def check_positive_s(name: str, value: Any) -> None:
    """Raises TypeError or ValueError, naming the setting and the value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    if not MIN_SECONDS <= value <= _LARGEST_S:
        raise ValueError(f"{name} must be finite and at least {MIN_SECONDS}, got {value!r}")


def check_int(name: str, value: Any, low: int, high: int) -> None:
    """Raises TypeError or ValueError, naming the setting and the value."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} … {high:,}, got {value!r}")
