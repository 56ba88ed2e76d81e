"""A policy changes between two runs: admitted calls stay, as long as there is a replica to run them."""

from __future__ import annotations

from collections import Counter

import pytest

from router_service.core.events import TableReceived
from router_service.core.rosters import KnownGeneration, RosterVersion, TableRoster
from router_service.core.routing_table import RoutingTable
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields


def test_what_waits_for_a_backend_stays_there_when_its_weight_goes() -> None:
    world = World({"a": ["a1"], "b": ["b1"]}, slots=1)
    world.submit([1])
    world.submit([2])
    world.weights = {"b": 1.0}
    world.push()
    world.submit([3])
    assert world.at_replica("b1") == [3]
    assert world.queued == {"a": 1}
    world.complete("a1")
    assert world.at_replica("a1") == [2]


@pytest.mark.parametrize("weights", [{"b": 1.0}, {"a": 0.0, "b": 1.0}])
def test_what_waits_for_a_backend_without_replicas_is_routed_anew(weights: dict[str, float]) -> None:
    world = World({"a": [], "b": ["b1"]})
    world.submit([1])
    world.submit([2])
    assert world.queued == {"a": 2}
    world.weights = weights
    world.push()
    assert world.at_replica("b1") == [1, 2]
    assert world.queued == {}


@pytest.mark.parametrize("how", ["its replicas leave", "its replicas drain", "its links break"])
def test_what_waits_is_routed_anew_as_soon_as_nobody_is_left_to_run_it(how: str) -> None:
    world = World({"a": ["a1"], "b": ["b1"]}, slots=1)
    world.submit([1])
    world.submit([2])
    world.weights = {"b": 1.0}
    world.push()
    assert world.queued == {"a": 1}
    match how:
        case "its replicas leave":
            world.backends["a"] = []
        case "its replicas drain":
            world.drain("a1")
        case _:
            world.links_at_once = False
            world.lose("a1")
    world.push()
    assert world.at_replica("b1") == [2]


def test_a_policy_that_still_names_the_backend_keeps_its_calls_there() -> None:
    world = World({"a": ["a1"], "b": ["b1"]}, weights={"a": 1.0}, slots=1)
    world.submit([1, 2])
    world.weights = {"a": 0.01, "b": 0.99}
    world.push()
    assert world.queued == {"a": 1}
    world.complete("a1")
    assert world.at_replica("a1") == [2]


def test_a_policy_that_still_names_a_backend_without_replicas_keeps_nothing_there() -> None:
    world = World({"a": [], "b": ["b1"]}, weights={"a": 1.0})
    world.submit([1])
    assert world.queued == {"a": 1}
    world.weights = {"a": 0.99, "b": 0.01}
    world.push()
    assert world.at_replica("b1") == [1]


def test_calls_before_a_policy_wait_for_it() -> None:
    world = World({"b": ["b1"]}, weights=None)
    world.submit([1, 2], shard_key="s")
    world.submit([3])
    assert not world.got("b1")
    world.weights = {"b": 1.0}
    world.push()
    assert world.at_replica("b1") == [1, 2, 3]


def test_a_policy_that_is_taken_away_lets_calls_wait_again() -> None:
    world = World({"b": []})
    world.submit([1])
    world.weights = None
    world.push()
    world.submit([2])
    world.weights = {"b": 1.0}
    world.backends["b"] = ["b1"]
    world.push()
    assert world.at_replica("b1") == [1, 2]


def test_calls_for_a_backend_that_is_not_there_yet_wait_for_it() -> None:
    world = World({"b": ["b1"]}, weights={"later": 1.0})
    world.submit([1])
    assert not world.outcomes
    world.backends["later"] = ["l1"]
    world.push()
    assert world.at_replica("l1") == [1]


@pytest.mark.parametrize("fields", [{}, {"shard_key": "s"}])
def test_nothing_goes_to_a_backend_whose_weight_was_0_at_admission(fields: Fields) -> None:
    world = World({"a": ["a1"], "b": ["b1"]}, slots=50)
    admitted_at: dict[int, set[str]] = {}
    for step in range(200):
        share = (step % 5) / 4
        world.weights = {"a": share, "b": 1.0 - share}
        world.push()
        ids = range(step * 20, step * 20 + 20)
        weighty = {name for name, weight in world.weights.items() if weight}
        admitted_at |= dict.fromkeys(ids, weighty)
        world.submit(ids, **fields)
        if step % 3 == 0:
            world.complete("a1")
            world.complete("b1")
    while world.held["a1"] or world.held["b1"]:
        world.complete("a1")
        world.complete("b1")
    for replica in ("a1", "b1"):
        assert all(replica[0] in admitted_at[call] for call in world.got(replica))
    assert Counter(world.outcomes.values()) == {OK: 4000}


def test_a_run_is_divided_by_one_policy() -> None:
    """Calls of one batch that wait for a policy are divided when it comes; later ones change nothing for them."""
    world = World({"a": ["a1"], "b": ["b1"]}, slots=1000, weights=None)
    world.submit(range(1000))
    world.weights = {"a": 0.5, "b": 0.5}
    world.push()
    world.weights = {"a": 1.0}
    world.push()
    assert abs(len(world.at_replica("a1")) - 500) < 64
    assert len(world.at_replica("a1")) + len(world.at_replica("b1")) == 1000


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_is_divided_keeps_its_order_at_each_backend(seed: int) -> None:
    world = World({"a": ["a1"], "b": ["b1"]}, slots=10, seed=seed, weights={"a": 0.5, "b": 0.5}, lazy=True)
    world.submit(range(40))
    world.lazy = False
    for name in ("a1", "b1"):
        world.cut(name)
        while world.held[name]:
            world.complete(name)
        assert world.got(name) == sorted(world.got(name))


def test_the_calls_of_a_shard_key_stay_together_and_move_with_the_weights() -> None:
    world = World({"a": ["a1"], "b": ["b1"]}, slots=10**4, weights={"a": 0.5, "b": 0.5})
    for number in range(100):
        world.submit(range(10 * number, 10 * number + 10), shard_key=f"key-{number}")
    homes = {call // 10: name for name in ("a1", "b1") for call in world.got(name)}
    for name in ("a1", "b1"):
        counts = Counter(call // 10 for call in world.got(name))
        assert set(counts.values()) == {10}
        assert 20 < len(counts) < 80
    world.weights = {"a": 1.0}
    world.push()
    moved = next(number for number, home in homes.items() if home == "b1")
    world.submit([5000], shard_key=f"key-{moved}")
    assert 5000 in world.got("a1")


@pytest.mark.parametrize("revision", [0, 1, 2])
def test_an_older_table_changes_nothing(revision: int) -> None:
    world = World({"a": ["a1"]})
    world.push()
    world.step(TableReceived(RoutingTable(generation="g", revision=revision)))
    world.submit([1])
    assert world.at_replica("a1") == [1]
    world.step(TableReceived(RoutingTable(generation="another", revision=revision)))
    world.submit([2])
    assert world.at_replica("a1") == [1, 2], "nor one of a controller that does not know all replicas"
    roster = TableRoster(RosterVersion("another", revision), covers=(KnownGeneration("g", 2, 0),))
    world.step(TableReceived(RoutingTable(generation="another", revision=revision, roster=roster)))
    world.submit([3])
    assert 3 in world.outcomes, "another generation is newer, whatever its revision"


def test_settings_that_change_hold_for_what_comes() -> None:
    world = World({"b": ["b1"]}, slots=1, settings={"max_queued_calls": 2})
    world.submit([1])
    world.submit([2, 3])
    world.settings["max_queued_calls"] = 1
    world.push()
    assert world.queued == {"b": 2}, "what waits already stays"
    world.submit([4])
    assert world.outcomes == {4: "QUEUE_FULL"}
    world.settings["max_queued_calls"] = 3
    world.push()
    world.submit([5, 6])
    assert set(world.outcomes) == {4, 6}
