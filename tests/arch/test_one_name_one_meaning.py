"""A class name means one thing in the whole repository: no two modules define classes of one name.

docs/architecture.md has a glossary with the classes of each word. An alias of a type must not have the name of a class
in another module either. What begins with an underscore is known in its module only, and generated code has the names
of the wire.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pytest

from tests.arch.sources import ROOT, SHIPPED, modules_of

ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    # Names that users write: what a document describes, what a client calls and what a test hosts is one thing to them.
    "Backend": frozenset({"slotmesh/spec/model.py", "slotmesh/testing/backends.py"}),
    "Endpoint": frozenset({"slotmesh/spec/model.py", "slotmesh/client/endpoint.py"}),
    "Mesh": frozenset({"slotmesh/spec/model.py", "slotmesh/client/mesh.py"}),
}


Modules = tuple[tuple[str, ast.Module], ...]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Paths and trees of all modules. They are read here, not at import: each process that runs tests imports this."""
    return tuple(modules_of(*SHIPPED, "benchmarks", "simulation", "examples", "tools"))


def _is_type_variable(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("TypeVar", "ParamSpec")
    )


def _aliases(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and not _is_type_variable(node.value):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        yield from (it.id for it in targets if isinstance(it, ast.Name) and it.id[:1].isupper())


def duplicates(modules: Iterable[tuple[str, ast.Module]]) -> dict[str, frozenset[str]]:
    """Names of classes that stand in several modules, and these modules."""
    classes: defaultdict[str, set[str]] = defaultdict(set)
    aliases: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(path)
        for name in _aliases(tree):
            aliases[name].add(path)
    found = {name: frozenset(paths | aliases[name]) for name, paths in classes.items()}
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_class_name_means_two_things(modules: Modules) -> None:
    found = duplicates(modules)
    new = {name: sorted(paths) for name, paths in found.items() if not paths <= ALLOWED.get(name, frozenset())}
    assert not new, "name each by what it is, or by its service: `RouterRun`, `ReplicaRun`"


def test_what_is_allowed_is_still_there(modules: Modules) -> None:
    found = duplicates(modules)
    assert found == ALLOWED


def test_the_classes_of_the_glossary_exist(modules: Modules) -> None:
    _, _, rest = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("\n## Words\n")
    rows = [line.split(" | ") for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| **")]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row[2])}
    known = {node.name for _, tree in modules for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    known.update(name for _, tree in modules for name in _aliases(tree))
    assert len(named) > 25
    assert named <= known


def test_classes_and_aliases_are_found() -> None:
    run, inner, alias = "class Run: ...", "class Table:\n    class Run: ...", "Run = int"
    variable, private = "Run = TypeVar('Run')", "class _Run: ..."

    def found(*texts: str) -> dict[str, frozenset[str]]:
        return duplicates((f"{n}.py", ast.parse(text)) for n, text in enumerate(texts))

    both = {"Run": frozenset({"0.py", "1.py"})}
    assert found(run, inner) == both
    assert found(run, alias) == both
    assert found(run, variable) == {}
    assert found(private, private) == {}
    assert found(alias, alias) == {}


def test_the_modules_are_all_there(modules: Modules) -> None:
    paths = {path for path, _ in modules}
    assert {"router_service/core/runs.py", "benchmarks/handler.py", "tools/generate_protos.py"} <= paths
    assert not any((ROOT / path).is_relative_to(ROOT / "slotmesh" / "v1") for path in paths)
