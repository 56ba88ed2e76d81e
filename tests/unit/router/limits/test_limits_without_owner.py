"""Calls that wait before anybody can run them have the limits of the backend that will get them."""

from __future__ import annotations

import pytest

from router_service.core.limits.admission import RETRY_JITTER
from slotmesh.errors import Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields

KEYED: Fields = {"ordering_key": "k"}
KINDS = [
    pytest.param({}, id="unkeyed"),
    pytest.param(KEYED, id="keyed"),
    pytest.param({"shard_key": "s"}, id="sharded"),
]


@pytest.mark.parametrize("fields", KINDS)
@pytest.mark.parametrize("replicas", [[], ["r"]], ids=["no replica", "not linked"])
def test_the_time_in_the_queue_is_that_of_the_only_backend(fields: Fields, replicas: list[str]) -> None:
    world = World({"b": replicas}, settings={"max_queue_time_s": 3.0}, links_at_once=False)
    world.submit([1], **fields)
    world.at(2.9)
    assert not world.outcomes
    world.at(3.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}
    assert "3 s" in world.failures[1].message


@pytest.mark.parametrize("fields", KINDS)
def test_as_many_may_wait_as_for_the_only_backend(fields: Fields) -> None:
    world = World({"b": []}, settings={"max_queued_calls": 2})
    world.submit([1, 2, 3], **fields)
    assert world.outcomes == {3: Reason.QUEUE_FULL}
    assert world.queued == {"b": 2}


def test_where_several_backends_may_get_a_key_the_widest_limits_count() -> None:
    world = World({"b": [], "c": []}, settings={"max_queue_time_s": 3.0}, weights={"b": 1.0, "c": 1.0})
    world.submit([1], **KEYED)
    world.at(3.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}
    assert world.queued == {}


def test_a_policy_that_names_one_backend_makes_it_the_one_that_counts() -> None:
    world = World({"b": [], "c": []}, weights=None, settings={"max_queue_time_s": 3.0})
    world.submit([1], **KEYED)
    assert world.queued == {}
    world.now = 1.0
    world.weights = {"c": 1.0}
    world.push()
    assert world.queued == {"c": 1}
    world.weights = {"b": 1.0}
    world.push()
    assert world.queued == {"b": 1}
    world.at(3.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}
    assert world.queued == {}


def test_a_backend_that_is_removed_and_comes_back_has_the_limits_of_the_new_one() -> None:
    world = World({"b": []}, settings={"max_queue_time_s": 20.0})
    world.submit([1], **KEYED)
    del world.backends["b"]
    world.push()
    world.backends["b"] = []
    world.settings["max_queue_time_s"] = 3.0
    world.push()
    assert world.queued == {"b": 1}
    world.at(3.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}


def test_what_waited_for_the_only_backend_runs_when_its_key_has_an_owner() -> None:
    world = World({"b": ["r"]}, settings={"max_queue_time_s": 3.0})
    world.submit([1, 2], **KEYED)
    assert world.queued == {"b": 2}
    world.owner = ("r", 1)
    world.push()
    assert world.got("r") == [1, 2]
    assert world.queued == {}
    world.complete("r")
    assert world.outcomes == {1: OK, 2: OK}
    world.at(4.0)
    assert len(world.outcomes) == 2


def test_a_queue_that_calls_came_to_from_elsewhere_has_had_them_since_then() -> None:
    world = World({"b": ["r"], "c": []}, weights={"b": 1.0, "c": 1.0}, settings={"max_queued_calls": 1})
    world.report("r", keyed_window=0)
    world.submit([1], **KEYED)
    world.at(4.0)
    world.owner = ("r", 1)
    world.push()
    assert world.queued == {"b": 1}
    world.at(9.0)
    world.submit([2], **KEYED)
    assert world.failures[2].reason is Reason.QUEUE_FULL
    assert world.failures[2].retry_delay_s == pytest.approx(5.0, rel=RETRY_JITTER)
