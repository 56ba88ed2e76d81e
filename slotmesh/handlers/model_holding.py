"""How long models of `@multiplexed` methods are held: to the end of the call that has got them, or of the block.

Invariant: what is held belongs to the context of one call; a generator's only while it runs a step of its own.
Owner: `holding` is applied to each method of a handler that has such methods.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Final

from slotmesh.handlers.kinds import MethodKind, runnable
from slotmesh.handlers.model_places import ModelUses

current_uses: Final[ContextVar[ModelUses | None]] = ContextVar("slotmesh.models", default=None)
"""Of the call that runs this code."""


def holding(function: Callable[..., Any], kind: MethodKind) -> Callable[..., Any]:
    """A function of that kind which calls this one, and holds the models that it loads until it has ended."""
    bound: Any = function if inspect.isroutine(function) else getattr(function, "__call__")  # noqa: B004, B009 - of its class
    run = runnable(bound, kind)

    @wraps(run)
    async def called_async(*args: Any, **kwargs: Any) -> Any:
        with call_uses():
            return await run(*args, **kwargs)

    @wraps(run)
    def called(*args: Any, **kwargs: Any) -> Any:
        with call_uses():
            return run(*args, **kwargs)

    @wraps(run)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        uses, values = ModelUses(), run(*args, **kwargs)
        try:
            while True:
                current_uses.set(uses)
                try:
                    value = next(values)
                except StopIteration:
                    return
                finally:
                    current_uses.set(None)
                yield value
        finally:
            try:
                values.close()
            finally:
                uses.end()

    by_kind: dict[MethodKind, Callable[..., Any]] = {
        MethodKind.ASYNC: called_async,
        MethodKind.DEF: called,
        MethodKind.GENERATOR: stepped,
        MethodKind.ASYNC_GENERATOR: _holding_between_steps(run),
    }
    return by_kind[kind]


def _holding_between_steps(run: Callable[..., Any]) -> Callable[..., Any]:
    """What is thrown into the function's generator is thrown into that of `run`, which may go on."""

    @wraps(run)
    async def stepped_async(*args: Any, **kwargs: Any) -> Any:
        uses, values = ModelUses(), run(*args, **kwargs)
        step = values.__anext__
        try:
            while True:
                current_uses.set(uses)
                try:
                    value = await step()
                except StopAsyncIteration:
                    return
                finally:
                    current_uses.set(None)
                step = values.__anext__
                try:
                    yield value
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the generator's own
                    step = partial(values.athrow, error)
        finally:
            try:
                await values.aclose()
            finally:
                uses.end()

    return stepped_async


@contextmanager
def call_uses() -> Iterator[ModelUses]:
    """The models that are loaded within the block are held until its end."""
    uses = ModelUses()
    before = current_uses.get()
    current_uses.set(uses)
    try:
        yield uses
    finally:
        current_uses.set(before)
        uses.end()


@contextmanager
def present_uses() -> Iterator[ModelUses]:
    """The uses of the current call; outside of calls, of this block."""
    uses = current_uses.get()
    if uses is not None and not uses.is_over:
        yield uses
        return
    uses = ModelUses()
    try:
        yield uses
    finally:
        uses.end()
