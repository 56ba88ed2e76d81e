"""Cores, and what of streams they share, import nothing for types only.

A compiled module (mypyc) makes the types of its fields at import, so each name in an annotation has to be there
at run time. Nothing stands against it: the modules of a core form no circle, and what they import is light.
"""

from __future__ import annotations

import ast

from tests.arch.sources import SERVICES, modules_of

COMPILED = (*(f"{service}/core" for service in SERVICES), "slotmesh/wire")


def is_for_types_only(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING") or (
        isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING"
    )


def test_no_import_is_for_types_only() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules_of(*COMPILED)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and is_for_types_only(node.test)
    ]
    assert not found, "import it plainly: compiled modules need the names of their annotations at run time"
