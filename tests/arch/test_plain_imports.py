"""Cores, and what of streams they share, import nothing for types only.

The modules of a core form no circle, and what they import is light: so there is one block of imports, and each name in
an annotation is there at run time.
"""

from __future__ import annotations

import ast

from tests.arch.sources import SERVICES, modules_of

PLAIN = (*(f"{service}/core" for service in SERVICES), "slotmesh/calls", "slotmesh/discovery", "slotmesh/streams")


def is_for_types_only(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING") or (
        isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING"
    )


def test_no_import_is_for_types_only() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules_of(*PLAIN)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and is_for_types_only(node.test)
    ]
    assert not found, "import it plainly: nothing of a core forms a circle"
