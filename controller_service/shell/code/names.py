"""Whether the module of a handler has the name that the handler gives, as far as its source shows. Pure.

Invariants: no user code is imported. A module that makes names while it runs (`import *`, `globals()`, `exec`, its own
`__getattr__`) shows nothing. A file that is no valid Python shows nothing: replicas report its error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from slotmesh.names import did_you_mean

_MAKES_NAMES: Final = frozenset({"globals", "locals", "vars", "exec", "eval", "setattr", "__dict__", "__getattr__"})
_VALUES: Final = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)
"""Expressions that make neither a class nor a function."""


def doubt_about(source: str, handler: str) -> str:
    """Why replicas will not find `MODULE:NAME`, or cannot use it, in words; empty if they may."""
    module, _, path = handler.partition(":")
    name = path.partition(".")[0]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    bound = dict[str, bool]()
    """The names that the module binds, and whether the value may be a class or a function."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) if word in _MAKES_NAMES:
                return ""
            case ast.FunctionDef(name="__getattr__"):
                return ""
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return ""
            case _:
                pass
    for word, may_be_called in _bound_in(tree):
        bound[word] = bound.get(word, False) or may_be_called
    if name not in bound:
        known = [word for word, may_be_called in bound.items() if may_be_called and not word.startswith("_")]
        return f"module {module!r} has no {name}{did_you_mean(name, known)}"
    return "" if bound[name] else f"{name} in module {module!r} is neither a class nor a function"


def _bound_in(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names that are bound outside of functions and classes, or declared global in one."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, True
                yield from ((word, True) for it in ast.walk(node) if isinstance(it, ast.Global) for word in it.names)
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if isinstance(value, _VALUES):
                yield name, False
                continue
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is None or isinstance(value, _VALUES):
                yield name, False
                continue
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0], True
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, True
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name, True
            case ast.MatchMapping(rest=str(name)):
                yield name, True
            case _:
                pass
        yield from _bound_in(node)
