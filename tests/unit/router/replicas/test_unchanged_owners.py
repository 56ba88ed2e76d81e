"""Owners that a table names as before, while the replica that they name comes, or leaves and comes again."""

from __future__ import annotations

from tests.unit.router.world import World


def test_calls_of_an_owner_that_is_not_listed_yet_go_there_when_it_is() -> None:
    world = World({"a": ["a1"], "b": []})
    world.owner = ("b1", 1)
    world.push()
    world.submit([1], ordering_key="k")
    world.submit([2])
    assert world.at_replica("a1") == [2]
    world.backends["b"] = ["b1"]
    world.push()
    assert world.at_replica("b1") == [1], "nothing of the endpoint has changed, but the replica is there"


def test_calls_of_an_owner_that_has_left_wait_for_it() -> None:
    world = World({"a": ["a1"], "b": ["b1"]})
    world.owner = ("b1", 1)
    world.push()
    world.submit([1], ordering_key="k")
    assert world.at_replica("b1") == [1]
    world.backends["b"] = []
    world.push()
    world.submit([2], ordering_key="other")
    assert world.at_replica("a1") == []
    world.backends["b"] = ["b1"]
    world.push()
    assert 2 in world.at_replica("b1")
