"""The syntax trees of everything that is shipped, generated code aside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("router_service", "replica_service", "controller_service", "ingress_service")
SHIPPED = ("slotmesh", *SERVICES)
GENERATED = (ROOT / "slotmesh" / "v1", ROOT / "slotmesh" / "inference")


def shipped_modules() -> Iterator[tuple[str, ast.Module]]:
    """Yields the path (from the root) and the tree of each shipped module."""
    return modules_of(*SHIPPED)


def modules_of(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yields the path (from the root) and the tree of each module in these folders, generated ones aside."""
    for package in folders:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.parent not in GENERATED and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                yield path.relative_to(ROOT).as_posix(), tree_of(path)


@cache
def tree_of(path: Path) -> ast.Module:
    """The tree of one module, kept until the tests of this folder are over: all of them take seconds."""
    return ast.parse(path.read_text("utf-8"), path)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and dotted name of everything imported; `from a import b` counts as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_within(name: str, package: str) -> bool:
    """Whether the dotted `name` is `package` or below it."""
    return name == package or name.startswith(package + ".")
