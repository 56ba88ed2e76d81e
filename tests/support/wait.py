"""Waiting for what becomes true, with a deadline. The only place in the tests where time is allowed to pass.

Invariant: a wait that fails says what did not become true in words of the test, without addresses of objects.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import linecache
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType
from typing import Any, Final, TypeVar

ValueT = TypeVar("ValueT")

POLL_S: Final = 0.002
"""How soon a wait that begins sees what changed, seconds."""
_LATE: Final = 0.05
"""A wait sees what changed later by this share of its duration: what takes long is not looked for all the time."""
_MOST_POLL_S: Final = 0.02
late_s = 0.0
"""How long, in seconds, every second wait goes on after it has seen what it waits for (`pytest --late-waits`)."""
_ADDRESS: Final = re.compile(r" (?:object )?at 0x[0-9a-fA-F]+")
_MOST_SHOWN: Final = 2_000
"""Characters of the last value."""


async def wait_until(predicate: Callable[[], ValueT], *, timeout: float = 20.0, what: str = "") -> ValueT:
    """Returns the first true value of `predicate`, which is asked between turns of the event loop.

    An IndexError is no value yet: the newest of what has come, as `reports[-1]`, while nothing has.

    Raises:
        AssertionError: it did not become true within `timeout` seconds; the message has `what`, else the predicate as
            it is written.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        last: object
        try:
            if value := predicate():
                if late_s and random.random() < 0.5:
                    await asyncio.sleep(late_s)
                return value
            last = value
        except IndexError as error:
            last = error
        if (waited_s := loop.time() - began) >= timeout:
            raise AssertionError(f"not within {timeout:g} s: {what or written(predicate)} (last: {shown(last)})")
        await asyncio.sleep(pause_s(waited_s))


def pause_s(waited_s: float) -> float:
    """How long a loop sleeps that has waited this long for what nothing reports."""
    return min(max(POLL_S, _LATE * waited_s), _MOST_POLL_S)


async def within(awaitable: Awaitable[ValueT], what: str, *, timeout: float = 20.0) -> ValueT:
    """What is awaited, with a bound.

    Raises:
        AssertionError: `what` did not happen within `timeout` seconds.
    """
    bound = asyncio.timeout(timeout)
    try:
        async with bound:
            return await awaitable
    except TimeoutError:
        if not bound.expired():
            raise
        raise AssertionError(f"not within {timeout:g} s: {what}") from None


def bounded(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    """The test, which fails after so many seconds where it waits then."""

    @functools.wraps(test)
    async def run(*arguments: Any, **named: Any) -> None:
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                await test(*arguments, **named)
        except TimeoutError as late:
            if not bound.expired():
                raise
            text = f"{test.__name__} still waited after {seconds:g} s, where the trace of its cancellation ends: give"
            raise AssertionError(f"{text} that wait a bound of its own (tests/support/wait.py)") from late

    return run


def shown(value: object) -> str:
    """The value as a message shows it: without addresses, and bounded."""
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def written(predicate: Callable[[], object]) -> str:
    """A predicate as it is written: of a lambda its expression, of anything else its name; and where it is."""
    if isinstance(predicate, functools.partial):
        given = ", ".join(
            [*map(shown, predicate.args), *(f"{key}={shown(it)}" for key, it in predicate.keywords.items())]
        )
        return f"{_name_of(predicate.func)}({given})"
    code = getattr(predicate, "__code__", None)
    if not isinstance(code, CodeType):
        owner = getattr(predicate, "__self__", None)
        return _name_of(predicate) if owner is None else f"{_name_of(predicate)} of {shown(owner)}"
    where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return f"{_expression_of(code) or _name_of(predicate)} ({where})"


def _name_of(function: object) -> str:
    name = getattr(function, "__qualname__", None) or shown(function)
    return name.replace(".<locals>", "")


def _expression_of(code: CodeType) -> str:
    """What a lambda returns; empty for what is no lambda, and where its source is not there."""
    if code.co_name != "<lambda>":
        return ""
    try:
        tree = _tree_of(code.co_filename)
    except (OSError, SyntaxError):
        return ""
    lambdas = [it.body for it in ast.walk(tree) if isinstance(it, ast.Lambda) and it.lineno == code.co_firstlineno]
    # A line may have several: that of the code has all of its places, and is the shortest of those that have.
    places = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]
    found = [(sum(it in _Span(body) for it in places), -len(ast.unparse(body)), ast.unparse(body)) for body in lambdas]
    return max(found, default=(0, 0, ""))[2]


class _Span:
    """From where to where an expression stands in its file."""

    def __init__(self, node: ast.expr) -> None:
        self._begin = (node.lineno, node.col_offset)
        self._end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def __contains__(self, place: tuple[int, int]) -> bool:
        return self._begin <= place < self._end


@functools.cache
def _tree_of(path: str) -> ast.Module:
    """Raises OSError, SyntaxError."""
    return ast.parse("".join(linecache.getlines(path)) or Path(path).read_text("utf-8"))
