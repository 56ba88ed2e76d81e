"""The children of each folder (its modules and sub-folders) import each other in one direction only.

A cycle is one concept in several places, or a name in the wrong one: to read any of them one has to read all. Imports
for types only and within functions count. The imports of an `__init__` do not: it may gather what its folder offers.
A Protocol that exactly one class of the product implements hides such a cycle: it shadows the class for modules that
may not import it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.arch.sources import GENERATED, ROOT, SHIPPED, shipped_modules, tree_of

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
        for target in imports_of(tree_of(path), modules):
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


SHADOWS: Mapping[str, str] = {
    "AttachedMember": "a replica's link to the controller is tested without the replica",
    "BatchSetters": "for type checkers: a batch function has these methods of `BatchControl` as attributes",
    "ChannelTls": "processes without certificates open channels, too, and import nothing of security",
    "Clock": "tests and simulations have clocks of their own",
    "EndTimer": "it is the kernel's; tests have one that they wind",
    "Holder": "the core bounds what streams hold, which are in the shell",
    "OwnRpcs": "servers of all services take such rpcs, and only routers have some",
    "ReplicaReceiver": "commands of the router's core go to links, which report through the dispatcher above them",
    "BroadcastSink": "the same as `RequestSource`",
    "RequestSource": "the same, to callers",
    "Server": "gRPC's own server is the other one",
    "SessionSink": "the same as `RequestSource`",
    "SlotSink": "the same as `RequestSource`",
    "TokenVerifier": "tests have verifiers of their own",
}
"""Protocols that one class of the product implements, and why each is none that hides a cycle."""


def shadows_in(trees: Iterable[ast.AST]) -> set[str]:
    """Names of the Protocols whose members exactly one other class has."""
    classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(node)
    protocols = {name for name, nodes in classes.items() if any("Protocol" in bases_of(node) for node in nodes)}
    has = {name: members_of(name, classes) for name in classes}
    return {name for name in protocols if sum(has[name] <= has[other] for other in classes.keys() - protocols) == 1}


def bases_of(node: ast.ClassDef) -> set[str]:
    """Names of the classes that it is derived from, without modules and type arguments."""
    bases = [each.value if isinstance(each, ast.Subscript) else each for each in node.bases]
    return {each.attr if isinstance(each, ast.Attribute) else ast.unparse(each) for each in bases}


def members_of(name: str, classes: Mapping[str, list[ast.ClassDef]], seen: frozenset[str] = frozenset()) -> set[str]:
    """Methods and attributes of the classes of this name, inherited ones included."""
    members: set[str] = set()
    for node in classes.get(name, ()):
        for each in ast.walk(node):
            match each:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if each in node.body:
                    members.add(each.name)
                case ast.AnnAssign(target=ast.Name(id=attribute)) if each in node.body:
                    members.add(attribute)
                case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                    members.add(attribute)
                case _:
                    pass
        for base in bases_of(node) - seen:
            members |= members_of(base, classes, seen | {name})
    return members


def test_no_protocol_shadows_one_class() -> None:
    found = shadows_in(tree for _, tree in shipped_modules())
    assert found <= SHADOWS.keys(), "name the class, or move what both need to where it imports neither"


def test_a_protocol_that_shadows_a_class_is_found() -> None:
    protocol = "class Holder(Protocol):\n    key: str\n    def free(self): ..."
    first = "class Base:\n    def free(self): ...\nclass First(Base):\n    def __init__(self):\n        self.key = ''"
    second = "class Second:\n    key: str\n    def free(self): ..."
    assert shadows_in([ast.parse(protocol), ast.parse(first)]) == {"Holder"}
    assert not shadows_in([ast.parse(protocol), ast.parse(first), ast.parse(second)]), "two kinds are held"
    assert not shadows_in([ast.parse(protocol)]), "it is for others to implement"


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
