"""The modules of a core form no circle of imports, those for types only and within functions included.

A circle is one concept in several files, or a name in the wrong one: to read any of them one has to read all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.arch.sources import ROOT, SERVICES

CORES = tuple(f"{service}.core" for service in SERVICES)
STILL_IN_A_CIRCLE: tuple[str, ...] = ()
"""Modules that are to be freed of theirs. Nothing is added: what is in no circle leaves."""

Graph = Mapping[str, set[str]]


def modules_of(package: str, root: Path) -> dict[str, Path]:
    """Dotted name -> file of each module of the package; a package is called like its folder."""
    files = (root / package.replace(".", "/")).rglob("*.py")
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yields whatever may be a module: of `from a import b`, both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph_of(package: str, root: Path = ROOT) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports."""
    modules = modules_of(package, root)
    return {
        name: {each for each in imports_of(ast.parse(path.read_text("utf-8"), path)) if each in modules} - {name}
        for name, path in modules.items()
    }


def reached_from(start: str, graph: Graph) -> set[str]:
    """What it imports, directly or through others."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which imports itself through others, largest first."""
    reached = {module: reached_from(module, graph) for module in graph}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }
    return sorted(map(list, groups), key=lambda group: (-len(group), group))


@pytest.fixture(scope="module")
def found() -> set[str]:
    return {module for core in CORES for group in circles(graph_of(core)) for module in group}


def test_no_other_module_is_in_a_circle(found: set[str]) -> None:
    new = sorted(found.difference(STILL_IN_A_CIRCLE))
    assert not new, f"move what both need below them: {[circles(graph_of(core)) for core in CORES]}"


def test_what_is_in_no_circle_leaves_the_list(found: set[str]) -> None:
    assert not sorted(set(STILL_IN_A_CIRCLE) - found), "in no circle any more: take it off STILL_IN_A_CIRCLE"


def test_the_list_names_each_once_and_in_order() -> None:
    assert list(STILL_IN_A_CIRCLE) == sorted(set(STILL_IN_A_CIRCLE))


@pytest.mark.parametrize("core", CORES)
def test_every_core_is_looked_at(core: str) -> None:
    graph = graph_of(core)
    assert core in graph
    assert any(graph.values()), "its modules import each other, so some of it must be seen"


@pytest.mark.parametrize(
    ("a", "b", "is_circle"),
    [
        ("from p.b import x", "", False),
        ("from p.b import x", "from p.a import y", True),
        ("from p import b", "import p.a", True),
        ("import p.b", "if TYPE_CHECKING:\n    from p.a import y", True),
        ("from p.c import x", "from p.a import y", True),
        ("def f():\n    from p.b import x", "def g():\n    from p.a import y", True),
        ("from p import x", "from p import y", False),
        ("from q.b import x", "from q.a import y", False),
    ],
)
def test_every_kind_of_circle_is_found(tmp_path: Path, a: str, b: str, is_circle: bool) -> None:
    package = tmp_path / "p"
    package.mkdir()
    for name, source in (("__init__", ""), ("a", a), ("b", b), ("c", "from p.b import x")):
        (package / f"{name}.py").write_text(source)
    assert bool(circles(graph_of("p", tmp_path))) is is_circle
