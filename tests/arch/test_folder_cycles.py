"""The children of each folder (its modules and sub-folders) import each other in one direction only.

A cycle is one concept in several places, or a name in the wrong one: to read any of them one has to read all. Imports
for types only and within functions count. The imports of an `__init__` do not: it may gather what its folder offers.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.arch.sources import GENERATED, ROOT, SHIPPED

Graph = Mapping[str, set[str]]


def modules_in(root: Path, *packages: str) -> dict[str, Path]:
    """Dotted name -> file of each hand-written module; a package is called like its folder."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in packages
        for path in (root / package).rglob("*.py")
        if path.parent not in GENERATED
    }


def imports_of(tree: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yields the modules that are imported: of `from a import b`, `a.b` if that is a module, otherwise `a`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in names if node.module in modules)


def folders_of(root: Path, *packages: str) -> dict[str, dict[str, set[str]]]:
    """Folder -> child -> the other children of this folder that it imports something of."""
    modules = modules_in(root, *packages)
    folders: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, path in modules.items():
        if path.name == "__init__.py":
            continue
        for target in imports_of(ast.parse(path.read_text("utf-8"), path), modules):
            importer, imported = name.split("."), target.split(".")
            depth = next((i for i, (a, b) in enumerate(zip(importer, imported, strict=False)) if a != b), 0)
            if depth:
                folders[".".join(importer[:depth])][importer[depth]].add(imported[depth])
    return folders


def cycles_in(graph: Graph) -> list[list[str]]:
    """Groups of children each of which imports itself through others."""
    reached = {child: reached_from(child, graph) for child in graph}
    groups = {
        tuple(sorted(other for other in reached[child] if child in reached.get(other, ())))
        for child in graph
        if child in reached[child]
    }
    return sorted(map(list, groups))


def reached_from(start: str, graph: Graph) -> set[str]:
    """What it imports, directly or through others."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - reached
        reached |= new
        ahead += new
    return reached


def test_no_folder_has_a_cycle() -> None:
    found = {folder: cycles for folder, graph in folders_of(ROOT, *SHIPPED).items() if (cycles := cycles_in(graph))}
    assert not found, "move what both need to where it imports neither"


@pytest.mark.parametrize("package", SHIPPED)
def test_each_package_is_seen(package: str) -> None:
    graph = folders_of(ROOT, package)[package]
    assert any(graph.values()), "its children import each other, so some of it must be seen"


@pytest.mark.parametrize(
    ("sources", "cycles"),
    [
        ({"a": "from p.b import x", "b": ""}, {}),
        ({"a": "from p.b import x", "b": "from p.a import y"}, {"p": [["a", "b"]]}),
        ({"a": "from p import b", "b": "import p.a"}, {"p": [["a", "b"]]}),
        ({"a": "import p.b", "b": "if TYPE_CHECKING:\n    from p.a import y"}, {"p": [["a", "b"]]}),
        ({"a": "def f():\n    from p.b import x", "b": "def g():\n    from p.a import y"}, {"p": [["a", "b"]]}),
        ({"a": "from p.b import x", "b": "from p.c import x", "c": "from p.a import x"}, {"p": [["a", "b", "c"]]}),
        ({"a": "from p import x", "b": "from p import y"}, {}),
        ({"a": "from q.b import x", "b": "from q.a import y"}, {}),
        # Of folders: no two files import each other, but their folders do.
        ({"f/a": "from p.b import x", "b": "from p.f.c import x", "f/c": ""}, {"p": [["b", "f"]]}),
        ({"f/a": "from p.f.g.b import x", "f/g/b": "from p.f.c import x", "f/c": ""}, {}),
        ({"f/a": "from p.f.g.b import x", "f/g/b": "from p.f.a import x"}, {"p.f": [["a", "g"]]}),
        # What an `__init__` gathers is no cycle, but what is imported of it is one of its folder's.
        ({"f/__init__": "from p.f.a import x", "f/a": "from p.b import x", "b": ""}, {}),
        ({"f/a": "from p.b import x", "f/__init__": "", "b": "from p.f import a"}, {"p": [["b", "f"]]}),
    ],
)
def test_every_kind_of_cycle_is_found(
    tmp_path: Path, sources: dict[str, str], cycles: dict[str, list[list[str]]]
) -> None:
    for name, source in {"__init__": "", **sources}.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    found = {folder: each for folder, graph in folders_of(tmp_path, "p").items() if (each := cycles_in(graph))}
    assert found == cycles
