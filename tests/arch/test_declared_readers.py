"""The services that read a setting of a backend, or an option of calls, are declared: others would get its default."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from slotmesh.calls.call_options import OPTIONS, Reader
from slotmesh.spec.model import ROUTED, SETTINGS
from tests.arch.sources import shipped_modules

SETTING_ATTRIBUTES = {each.attribute for each in SETTINGS.values()}
OPTION_READERS = {each.attribute: each.read_by for each in OPTIONS.values()}


def read(package: str, owner: str) -> Iterator[tuple[str, str]]:
    """Yields where the package reads an attribute of what it calls `owner`, and which: `owner.x`, `run.owner.x`."""
    for path, tree in shipped_modules():
        for node in ast.walk(tree) if path.startswith(package) else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                named = node.value
                name = (
                    named.id if isinstance(named, ast.Name) else named.attr if isinstance(named, ast.Attribute) else ""
                )
                if name == owner:
                    yield f"{path}:{node.lineno}", node.attr


def test_settings_that_routers_read_are_routed() -> None:
    found = [(where, name) for where, name in read("router_service/core/", "settings") if name in SETTING_ATTRIBUTES]
    assert found, "nobody reads any"
    routed = {each.attribute for each in ROUTED.values()}
    assert not [each for each in found if each[1] not in routed], "slotmesh/spec/model.py: is_routed=True"
    assert routed == {name for _, name in found}, "what no router reads need not be in the routing table"


@pytest.mark.parametrize(
    ("package", "reader"),
    [("router_service/", Reader.ROUTER), ("replica_service/", Reader.REPLICA)],
    ids=["router", "replica"],
)
def test_options_that_are_read_are_declared_to_be(package: str, reader: Reader) -> None:
    found = [(where, name) for where, name in read(package, "options") if name in OPTION_READERS]
    assert found, "nobody reads any"
    wrong = [each for each in found if reader not in OPTION_READERS[each[1]]]
    assert not wrong, f"slotmesh/calls/call_options.py: read_by={reader}"
