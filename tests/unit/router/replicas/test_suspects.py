"""Replicas that the controller does not hear of: unkeyed calls go to others; links, owners and what runs stay."""

from __future__ import annotations

from tests.unit.router.world import OK, World


def test_unkeyed_calls_go_to_others_while_a_replica_is_suspect_and_come_back() -> None:
    world = World({"v1": ["a", "b"]}, slots=4)
    world.suspects = {"a"}
    world.push()
    world.submit(range(1, 5))
    assert (len(world.held["a"]), len(world.held["b"])) == (0, 4)
    assert world.replicas["a"].linked
    world.submit(range(5, 9))
    assert not world.held["a"], "they wait"
    world.suspects = set()
    world.push()
    assert sorted(world.held["a"].values()) == [5, 6, 7, 8], "as soon as it is heard of again"


def test_calls_that_run_there_and_its_keys_are_not_touched() -> None:
    world = World({"v1": ["a", "b"]}, slots=4, owner=("a", 1))
    world.submit(range(1, 9))
    assert len(world.held["a"]) == 4
    world.suspects = {"a"}
    world.push()
    world.submit([9], ordering_key="k")
    assert 9 in world.held["a"].values()
    world.complete("a")
    world.complete("b")
    assert set(world.outcomes.values()) == {OK}
    assert len(world.outcomes) == 9


def test_one_that_is_new_and_suspect_gets_nothing_before_it_is_heard_of() -> None:
    world = World({"v1": ["a"]}, slots=1)
    world.backends["v1"].append("b")
    world.suspects = {"b"}
    world.push()
    world.submit([1, 2])
    assert (len(world.held["a"]), len(world.held["b"])) == (1, 0)


def test_where_nobody_else_takes_calls_suspects_do() -> None:
    """Each may well be alive, and the controller may be the one that is cut off."""
    world = World({"v1": ["a", "b"]}, slots=1)
    world.suspects = {"a", "b"}
    world.push()
    world.submit([1, 2])
    assert (len(world.held["a"]), len(world.held["b"])) == (1, 1)
    world.suspects = {"b"}
    world.push()
    world.submit([3, 4])
    world.complete("b")
    assert not world.held["b"], "a is heard again, and is enough"


def test_suspects_take_over_what_waits_when_the_last_other_one_is_lost_and_stop_when_it_is_back() -> None:
    world = World({"v1": ["a", "b"]}, slots=2)
    world.suspects = {"a"}
    world.push()
    world.submit(range(1, 5))
    assert (len(world.held["a"]), len(world.held["b"])) == (0, 2)
    world.lose("b")
    assert sorted(world.held["a"].values()) == [3, 4], "what waited"
    world.link("b")
    world.submit([5, 6, 7])
    assert sorted(world.held["b"].values()) == [5, 6]
    world.complete("a")
    assert not world.held["a"]
    world.complete("b")
    assert sorted(world.held["b"].values()) == [7]


def test_a_suspect_that_leaves_the_table_is_forgotten() -> None:
    world = World({"v1": ["a", "b"]}, slots=2)
    world.suspects = {"a"}
    world.push()
    world.backends["v1"] = ["b"]
    world.push()
    assert not world.scheduler.topology.backends["v1"].suspects
    world.submit([1])
    assert len(world.held["b"]) == 1
