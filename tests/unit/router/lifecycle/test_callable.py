"""What a router says can be called."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from router_service.core.events import LinkLost, LinkOpened
from router_service.core.routing import catalog as can_be_called
from tests.unit.router.world import World


def told(world: World, endpoint: str = "") -> dict[str, list[str]]:
    return dict(can_be_called.callable_methods(world.scheduler.topology, endpoint))


def opened(world: World, replica: str, methods: Sequence[str]) -> None:
    world.step(LinkOpened(world.replicas[replica], world.replicas[replica].capacity, "stream", methods))


def test_methods_are_those_of_linked_replicas_of_the_backends_that_get_traffic() -> None:
    world = World({"a": ["a1", "a2"], "b": ["b1"], "dark": ["d1"]}, weights={"a": 0.5, "b": 0.5}, links_at_once=False)
    world.shadows = {"dark": 0.5}
    world.push()
    assert told(world) == {"e": []}
    opened(world, "a1", ["old", "both"])
    opened(world, "a2", ["both", "new"])
    opened(world, "b1", ["also"])
    opened(world, "d1", ["dark"])
    assert told(world) == told(world, "e") == {"e": ["also", "both", "new", "old"]}
    assert told(world, "nowhere") == {}
    world.step(LinkLost(world.replicas["a1"], "it was killed"))
    assert told(world) == {"e": ["also", "both", "new"]}


def test_a_router_names_a_bounded_number_of_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(can_be_called, "MAX_NAMES", 5)
    world = World({"a": ["a1"]}, endpoints=["e", "f", "g"])
    opened(world, "a1", ["x", "y", "z"])
    assert told(world) == {"e": ["x", "y", "z"], "f": ["x", "y"], "g": []}
