"""One file maps errors to gRPC statuses and back, so `grpc.StatusCode` is named nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.arch.sources import imports, shipped_modules

TABLE = "slotmesh/status.py"


def status_codes(tree: ast.Module) -> Iterator[int]:
    """Yields the lines that name `grpc.StatusCode`, under whatever name grpc was imported."""
    yield from (line for line, name in imports(tree) if name == "grpc.StatusCode")
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "grpc" or (alias.asname is None and alias.name.startswith("grpc."))
    }
    grpc_names = {alias.split(".")[0] for alias in aliases}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="StatusCode") if name in grpc_names:
                yield node.lineno


def test_status_code_is_named_in_the_table_only() -> None:
    found = [f"{path}:{line}" for path, tree in shipped_modules() if path != TABLE for line in status_codes(tree)]
    assert not found, f"grpc.StatusCode belongs in {TABLE}; ask the table instead"


@pytest.mark.parametrize(
    "source",
    [
        "import grpc\ncode = grpc.StatusCode.OK",
        "import grpc as rpc\ncode = rpc.StatusCode.OK",
        "import grpc.aio\ncode = grpc.StatusCode.OK",
        "from grpc import StatusCode",
        "from grpc import StatusCode as Code",
        "import grpc\ndef code(it: grpc.StatusCode) -> None: ...",
    ],
)
def test_every_spelling_is_found(source: str) -> None:
    assert list(status_codes(ast.parse(source)))


def test_other_status_codes_are_left_alone() -> None:
    source = (
        "from opentelemetry import trace\nfrom opentelemetry.trace import StatusCode\ncode = trace.StatusCode.ERROR"
    )
    assert not list(status_codes(ast.parse(source)))
