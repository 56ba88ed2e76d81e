"""Private parts of grpc are reached into by `slotmesh/grpc_internals/` only, where one switch turns that off."""

from __future__ import annotations

import ast

import pytest

from tests.arch.sources import imports, shipped_modules

PLACE = "slotmesh/grpc_internals/"
ATTRIBUTES = ("_cython_call", "_cython_channel", "cygrpc")


def private_uses(tree: ast.AST) -> list[str]:
    """Modules of grpc with a private part in their name that are imported, and private attributes of its calls."""
    found = [
        name
        for _, name in imports(tree)
        if name.startswith("grpc.") and any(part.startswith("_") for part in name.split("."))
    ]
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return found + [name for name in (*names, *texts) if name in ATTRIBUTES]


def test_only_one_package_uses_private_parts_of_grpc() -> None:
    found = {
        path: uses for path, tree in shipped_modules() if not path.startswith(PLACE) if (uses := private_uses(tree))
    }
    assert not found, f"move what needs them to {PLACE}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from grpc._cython import cygrpc", 1),
        ("import grpc.aio._call", 1),
        ("def f():\n    from grpc._channel import Channel", 1),
        ("call._cython_call.cancel()", 1),
        ("getattr(call, '_cython_call', None)", 1),
        ("import grpc\nfrom grpc.aio import AioRpcError\ncall.cancel()", 0),
    ],
)
def test_every_way_is_found(source: str, count: int) -> None:
    assert len(private_uses(ast.parse(source))) == count
