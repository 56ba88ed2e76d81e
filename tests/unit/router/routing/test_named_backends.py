"""Calls that name the backend which must execute them."""

from __future__ import annotations

from typing import Any

from router_service.core.failures import listed
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import World

TWO = {"a": ["a1"], "b": ["b1"]}


def test_only_the_named_backend_gets_them_whatever_its_weight() -> None:
    world = World(TWO, weights={"a": 1.0, "b": 0.0})
    world.submit(range(1, 4), backend="b")
    world.submit([4])
    assert sorted(world.held["b1"].values()) == [1, 2, 3]
    assert sorted(world.held["a1"].values()) == [4]


def test_what_finds_no_room_waits_for_it_there() -> None:
    world = World(TWO, weights={"a": 0.5, "b": 0.5}, slots=1)
    world.submit([1, 2], backend="b")
    assert list(world.held["b1"].values()) == [1]
    assert not world.held["a1"]
    world.complete("b1", 1)
    assert list(world.held["b1"].values()) == [2]


def test_a_backend_that_the_policy_does_not_name() -> None:
    world = World(TWO, weights={"a": 1.0})
    world.submit([1], backend="b")
    failure = world.failures[1]
    assert (failure.reason, failure.executed) == (Reason.BACKEND_NOT_FOUND, Executed.NO)
    assert failure.message == "no backend of e is named 'b'; there is: a"


def test_names_that_there_are_are_listed_up_to_eight() -> None:
    assert (listed([]), listed("ba")) == ("none yet", "a, b")
    assert listed("hgfedcba") == "a, b, c, d, e, f, g, h"
    assert listed(f"e{number:04}" for number in range(2000)).endswith(", e0007 and 1,992 more")


def test_sequences_name_a_backend_only_where_there_is_no_other() -> None:
    keyed: dict[str, Any] = {"ordering_key": "k"}
    world = World(TWO, weights={"a": 0.5, "b": 0.5})
    world.submit([1], backend="a", **keyed)
    assert world.failures[1].reason is Reason.BAD_REQUEST
    alone = World({"a": ["a1"]})
    alone.submit([1], backend="a", **keyed)
    assert 1 not in alone.failures


def test_a_backend_that_leaves_the_policy_fails_what_waits_for_it() -> None:
    world = World(TWO, weights={"a": 0.5, "b": 0.5}, slots=1)
    world.submit([1, 2], backend="b")
    world.weights = {"a": 1.0}
    del world.backends["b"]
    world.push()
    assert world.failures[2].reason is Reason.BACKEND_NOT_FOUND
