"""Files are short, one concept each, and functions fit a screen: past the bound there are usually two concepts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.sources import GENERATED, ROOT

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FOLDERS = (
    "slotmesh",
    "router_service",
    "replica_service",
    "ingress_service",
    "controller_service",
    "simulation",
    "benchmarks",
    "examples",
    "tools",
    "tests",
)
TABLES = {
    "slotmesh/errors.py": "the table of failures: the reasons, and a class for each",
    "simulation/mesh/defects.py": "the table of seeded defects: one entry each, nothing else",
    "slotmesh/telemetry/names.py": "the table of metrics, and of the names of attributes: one entry each",
    "tests/mutants/table.py": "the table of mutants: one entry each, nothing else",
}
"""Files that may be as long as what they list, with the reason."""
STILL_TOO_LONG: tuple[str, ...] = ()
"""Files, and functions as `path::qualified.name`, that are to be split. Nothing is added; what is short leaves."""


def python_files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent not in GENERATED and "node_modules" not in path.parts:
                yield path


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields those in the node, the parts of a `try` and of a `match` too: no expression has a function with lines."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, field, ())


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yields the qualified name and the lines of each function, nested ones too; decorators do not count."""
    for node in statements(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, (node.end_lineno or node.lineno) - node.lineno + 1
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def too_long(path: str, source: str) -> Iterator[str]:
    """Yields the file, if it is, and each of its functions that is."""
    if len(source.splitlines()) > MAX_FILE_LINES and path not in TABLES:
        yield path
    for name, lines in functions(ast.parse(source, path)):
        if lines > MAX_FUNCTION_LINES:
            yield f"{path}::{name}"


def test_nothing_else_is_too_long_and_what_is_short_enough_leaves_the_list() -> None:
    found = {
        each for path in python_files() for each in too_long(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    }
    new = sorted(found.difference(STILL_TOO_LONG))
    assert not new, f"over {MAX_FILE_LINES} lines a file or {MAX_FUNCTION_LINES} a function: split it by concept"
    assert not sorted(set(STILL_TOO_LONG) - found), "no longer too long: take it off STILL_TOO_LONG"


def test_the_list_names_each_once_and_in_order() -> None:
    assert list(STILL_TOO_LONG) == sorted(set(STILL_TOO_LONG))


@pytest.mark.parametrize("path", TABLES)
def test_an_exception_is_needed(path: str) -> None:
    assert len((ROOT / path).read_text("utf-8").splitlines()) > MAX_FILE_LINES, "it is short: no exception is needed"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\n" * 400, []),
        ("x = 1\n" * 401, ["a.py"]),
        ("def f():\n" + "    x = 1\n" * 59, []),
        ("def f():\n" + "    x = 1\n" * 60, ["a.py::f"]),
        ("class A:\n    async def f():\n" + "        x = 1\n" * 60, ["a.py::A.f"]),
        ("def f():\n    def g():\n" + "        x = 1\n" * 60, ["a.py::f", "a.py::f.g"]),
        ("if True:\n    def f():\n" + "        x = 1\n" * 60, ["a.py::f"]),
        ("if x:\n    pass\nelse:\n    def f():\n" + "        x = 1\n" * 60, ["a.py::f"]),
        ("try:\n    pass\nexcept E:\n    def f():\n" + "        x = 1\n" * 60, ["a.py::f"]),
        ("try:\n    pass\nfinally:\n    def f():\n" + "        x = 1\n" * 60, ["a.py::f"]),
        ("match x:\n    case 1:\n        def f():\n" + "            x = 1\n" * 60, ["a.py::f"]),
    ],
)
def test_every_way_to_be_too_long_is_found(source: str, expected: list[str]) -> None:
    assert list(too_long("a.py", source)) == expected
