"""`@deployment` and `@batch`: notes on classes and functions, which stay what they are.

Invariants: a decorator returns the very object that it was given, so `self` has the user's type, a decorated class can
be subclassed, and a batch method called directly takes a list and returns a list, or yields lists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

from slotmesh.handlers.settings import BatchSettings, DeploymentSettings

TargetT = TypeVar("TargetT", bound=Callable[..., Any])

_DEPLOYMENT: Final = "__slotmesh_deployment__"
_BATCH: Final = "__slotmesh_batch__"


@overload
def deployment(target: TargetT, /) -> TargetT: ...


@overload
def deployment(*, max_ongoing: int | None = None, prefetch: int | None = None) -> Callable[[TargetT], TargetT]: ...


def deployment(target: Any = None, /, *, max_ongoing: int | None = None, prefetch: int | None = None) -> Any:
    """Makes a class or a function a handler: what a replica runs.

    The public methods of a class can be called, inherited ones too, and `__call__` under the empty name; a function is
    its own only method, under the empty name. `async def` runs on the event loop, `def` in threads; either may `yield`
    several values a call. `reconfigure` and `check_health` are the replica's own and cannot be called.

    Args:
        target: the class or function, where the decorator is used without parentheses.
        max_ongoing: calls that one replica executes at once, 1 … 1,000,000. Default: 512 where all methods are
            `async def`, else 8; never less than the batches of a batch method hold together.
        prefetch: calls without an ordering key that may wait at a replica behind the running ones. Default: one batch
            (the largest `max_batch_size`) where there are batch methods, else 0.

    Raises:
        TypeError: a value of another type, or a target that is neither class nor function.
        ValueError: a value out of range.
    """
    settings = DeploymentSettings(max_ongoing=max_ongoing, prefetch=prefetch)

    def decorate(handler: TargetT) -> TargetT:
        if not inspect.isclass(handler) and not inspect.isfunction(handler):
            raise TypeError(f"@deployment goes on a class or a function, got {handler!r}")
        setattr(handler, _DEPLOYMENT, settings)
        return handler

    return decorate if target is None else decorate(target)


@overload
def batch(target: TargetT, /) -> TargetT: ...


@overload
def batch(
    *, max_batch_size: int = 10, batch_wait_timeout_s: float = 0.01, max_concurrent_batches: int = 1
) -> Callable[[TargetT], TargetT]: ...


def batch(
    target: Any = None,
    /,
    *,
    max_batch_size: int = 10,
    batch_wait_timeout_s: float = 0.01,
    max_concurrent_batches: int = 1,
) -> Any:
    """Makes a function or method, `async def` or `def`, take many calls at once: lists in, a list as long out.

    Callers pass one item and get one result; each parameter of the method receives a list of the callers' items. A
    batch is cut when one of `max_concurrent_batches` is free and it is full or its first call has waited long enough:
    under load batches fill by themselves. Called directly, in Python, it is what it says: a list in, a list out. One
    that yields yields such lists: a value more for each caller every time.

        @slotmesh.batch(max_batch_size=32)
        def classify(self, images: list[bytes]) -> list[int]: ...

    Args:
        target: the function, where the decorator is used without parentheses.
        max_batch_size: calls in a batch, 1 … 100,000.
        batch_wait_timeout_s: seconds that the first call of a batch waits for others; 0 waits for none.
        max_concurrent_batches: batches that run at the same time, at least 1.

    Raises:
        TypeError: a value of another type, or a target that is not a function.
        ValueError: a value out of range.
    """
    settings = BatchSettings(
        max_batch_size=max_batch_size,
        batch_wait_timeout_s=batch_wait_timeout_s,
        max_concurrent_batches=max_concurrent_batches,
    )

    def decorate(function: TargetT) -> TargetT:
        if not inspect.isfunction(function):
            raise TypeError(
                f"@batch goes on a function or method, below @staticmethod and @classmethod, got {function!r}"
            )
        setattr(function, _BATCH, settings)
        return function

    return decorate if target is None else decorate(target)


def deployment_settings(handler: object) -> DeploymentSettings:
    """What `@deployment` said, or the defaults where a handler goes without it. A subclass has its base's settings."""
    settings = getattr(handler, _DEPLOYMENT, None)
    return settings if isinstance(settings, DeploymentSettings) else DeploymentSettings()


def batch_settings(function: object) -> BatchSettings | None:
    """What `@batch` said; None where it is not a batch function."""
    settings = getattr(function, _BATCH, None)
    return settings if isinstance(settings, BatchSettings) else None
