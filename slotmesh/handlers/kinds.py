"""How a method is run: read off the function, below its decorators, and off its return annotation.

Purpose: a decorator that is a plain `def` around an `async def` or a generator function does not change the kind of the
method; nor does `functools.partial`, or a `def` whose annotation is an awaitable or an iterator.
Invariants: the kind is known at start. `runnable` gives executors a function of exactly that kind, whatever the user's
function returns; a function that is of its kind already is returned as it is, and costs nothing.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterable, Iterator
from enum import StrEnum
from functools import partial, partialmethod, singledispatchmethod, wraps
from typing import Any, Final, get_origin

from slotmesh.codec.types.signature import resolve_annotation


class MethodKind(StrEnum):
    """How a method is run."""

    ASYNC = "async"
    """`async def`: on the event loop."""
    DEF = "def"
    """`def`: in a thread."""
    ASYNC_GENERATOR = "async_generator"
    """`async def` that `yield`s: on the event loop."""
    GENERATOR = "generator"
    """`def` that `yield`s: in threads."""

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop."""
        return self in {MethodKind.ASYNC, MethodKind.ASYNC_GENERATOR}

    @property
    def yields(self) -> bool:
        """Whether it gives values one by one."""
        return self in {MethodKind.GENERATOR, MethodKind.ASYNC_GENERATOR}


_BY_ANNOTATION: Final = {
    collections.abc.Awaitable: MethodKind.ASYNC,
    collections.abc.Coroutine: MethodKind.ASYNC,
    collections.abc.AsyncIterator: MethodKind.ASYNC_GENERATOR,
    collections.abc.AsyncIterable: MethodKind.ASYNC_GENERATOR,
    collections.abc.AsyncGenerator: MethodKind.ASYNC_GENERATOR,
    collections.abc.Iterator: MethodKind.GENERATOR,
    collections.abc.Generator: MethodKind.GENERATOR,
}
_MOST_LAYERS: Final = 64


def kind_of(function: Any) -> MethodKind:
    """The kind of a function, a method, or an object with `__call__`."""
    kind = next((kind for layer in layers(function) if (kind := _own_kind(layer)) is not None), MethodKind.DEF)
    if kind.yields or (annotated := _annotated_kind(function)) is None:
        return kind
    if kind is MethodKind.ASYNC:  # it is awaited in any case, and may return what yields
        return MethodKind.ASYNC_GENERATOR if annotated.yields else kind
    return annotated


def layers(function: Any) -> Iterator[Any]:
    """The function, and what it wraps, from the outside in."""
    for _ in range(_MOST_LAYERS):
        yield function
        if isinstance(function, partial | partialmethod):
            function = function.func
        elif (wrapped := getattr(function, "__wrapped__", None)) is not None:
            function = wrapped
        elif not inspect.isroutine(function) and not inspect.isclass(function) and _is_callable_object(function):
            function = type(function).__call__
        else:
            return


def is_method(found: Any) -> bool:
    """Whether an attribute of a class is a method: a function, decorated or not, and no object that can be called."""
    if isinstance(found, partialmethod | singledispatchmethod):
        return True
    if inspect.isroutine(found):
        return callable(found)  # what is not, as a `cached_property`, is a value that the replica must not compute
    return (
        not inspect.isclass(found) and callable(found) and hasattr(found, "__wrapped__") and hasattr(found, "__get__")
    )


def runnable(function: Callable[..., Any], kind: MethodKind) -> Callable[..., Any]:
    """A function of that kind, which calls this one."""
    if kind is MethodKind.DEF or _own_kind(function) is kind or _own_kind(_call_of(function)) is kind:
        return function
    if kind is MethodKind.ASYNC:
        return _awaiting(function)
    return _iterating_async(function) if kind is MethodKind.ASYNC_GENERATOR else _iterating(function)


def _own_kind(function: Any) -> MethodKind | None:
    if inspect.isasyncgenfunction(function):
        return MethodKind.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(function):
        return MethodKind.GENERATOR
    return MethodKind.ASYNC if inspect.iscoroutinefunction(function) else None


def _annotated_kind(function: Any) -> MethodKind | None:
    try:
        annotation = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return None
    wanted = resolve_annotation(annotation, function)
    try:
        return _BY_ANNOTATION.get(get_origin(wanted) or wanted)
    except TypeError:  # it has no hash
        return None


def _call_of(function: Any) -> Any:
    """The method that calls an object; None of a function."""
    return type(function).__call__ if not inspect.isroutine(function) and _is_callable_object(function) else None


def _is_callable_object(value: Any) -> bool:
    return inspect.isfunction(getattr(type(value), "__call__", None))  # noqa: B004 - which kind of function it is


def _awaiting(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(function)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        return await returned if inspect.isawaitable(returned) else returned

    return awaiting


def _iterating(function: Callable[..., Any]) -> Callable[..., Generator[Any, None, None]]:
    @wraps(function)
    def iterating(*args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        yield from _iterable(function(*args, **kwargs))

    return iterating


def _iterating_async(function: Callable[..., Any]) -> Callable[..., AsyncGenerator[Any, None]]:
    @wraps(function)
    async def iterating(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        returned = function(*args, **kwargs)
        if inspect.isawaitable(returned):
            returned = await returned
        if not isinstance(returned, AsyncIterable):
            for value in _iterable(returned):
                yield value
            return
        values = aiter(returned)
        try:
            async for value in values:
                yield value
        finally:
            if (close := getattr(values, "aclose", None)) is not None:
                await close()

    return iterating


def _iterable(returned: Any) -> Iterable[Any]:
    if not isinstance(returned, Iterable):
        raise TypeError(f"a method that yields returned {type(returned).__name__}, which cannot be iterated over")
    return returned
