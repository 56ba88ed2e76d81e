"""Changes of the real code that last for a while: one piece of one function becomes another one.

Purpose: seeded defects (`defects.py`) and, with them, proof that the judge sees what it has to see.
Invariants: a change is exact. The piece that it replaces stands in the function just once, or nothing is changed at
all and `Misfit` says so: whoever edits such a function hears of it. Everybody who has the function sees the change,
however it was imported, since its code is exchanged, not its name. Afterwards all is as it was.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Final

_REACHED: Final = "__simulation_reached__"


class Misfit(Exception):
    """A change does not fit the code any more."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One piece of one function."""

    where: str
    """Module and function: `router_service.core.features.session_resumption:Resumptions._query`.

    A property is its getter.
    """
    old: str
    new: str


@dataclass(slots=True)
class Reached:
    """How often changed functions were called."""

    count: int = 0

    def __call__(self) -> None:
        self.count += 1


@contextmanager
def changed(changes: Iterable[SourceChange]) -> Iterator[Reached]:
    """The code is changed as long as the context lasts. Raises Misfit where it cannot be."""
    reached = Reached()
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(_changed(change, reached))
        yield reached


@contextmanager
def _changed(change: SourceChange, reached: Reached) -> Iterator[None]:
    function = _find(change.where)
    before, names = function.__code__, function.__globals__
    code = _code_of(change, function)
    known = names.get(_REACHED)
    names[_REACHED] = reached
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before
        if known is None:
            names.pop(_REACHED, None)
        else:
            names[_REACHED] = known


def _find(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    try:
        found = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError) as error:
        raise Misfit(f"{where} is not there: {error}") from error
    if isinstance(found, property):
        found = found.fget
    function = getattr(found, "__func__", found)
    if not isinstance(function, FunctionType):
        raise Misfit(f"{where} is no function")
    return function


def _code_of(change: SourceChange, function: FunctionType) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    if (count := source.count(change.old)) != 1:
        raise Misfit(f"{change.where} has {change.old!r} {count} times, not once: adapt the defect to the code")
    tree = ast.parse(source.replace(change.old, change.new))
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef):
        raise Misfit(f"{change.where} is no function")
    body.decorator_list.clear()
    body.body[:0] = ast.parse(f"{_REACHED}()").body
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    flags = __future__.annotations.compiler_flag
    module = compile(
        ast.fix_missing_locations(tree), function.__code__.co_filename, "exec", flags=flags, dont_inherit=True
    )
    code = next((it for it in module.co_consts if isinstance(it, CodeType) and it.co_name == function.__name__), None)
    if code is None or code.co_freevars != function.__code__.co_freevars:
        raise Misfit(f"{change.where} cannot be changed: it uses names of what is around it")
    return code
