"""When a replica whose link failed is tried again."""

from __future__ import annotations

import pytest

from router_service.core.commands import RetryLink
from router_service.core.events import LinkFailed
from router_service.core.replicas.backends import FIRST_S, HEALTHY_S, LONGEST_S, Ejections
from router_service.core.replicas.replica import RoutedReplica
from tests.unit.router.world import World

EACH = ("r", "life")
MIDDLE = 1.0
"""The draw with which a delay is its ceiling."""


def test_intervals_double_up_to_the_longest() -> None:
    ejections, each = Ejections(), EACH
    delays = [ejections.failed(each, 10, 0.0, MIDDLE) for _ in range(8)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_S, LONGEST_S, LONGEST_S])
    assert ejections.out == 1


def test_delays_are_spread_over_half_of_their_interval() -> None:
    assert Ejections().failed(EACH, 10, 0.0, 0.0) == FIRST_S / 2
    assert Ejections().failed(EACH, 10, 0.0, 0.5) == FIRST_S * 0.75


@pytest.mark.parametrize(("held_s", "delay_s"), [(HEALTHY_S - 0.1, 0.8), (HEALTHY_S, FIRST_S)])
def test_a_link_that_held_for_a_while_is_forgiven(held_s: float, delay_s: float) -> None:
    ejections, each = Ejections(), EACH
    for _ in range(3):
        ejections.failed(each, 10, 0.0, MIDDLE)
    ejections.came_back(each, 5.0)
    assert ejections.out == 0
    assert ejections.failed(each, 10, 5.0 + held_s, MIDDLE) == pytest.approx(delay_s)
    assert ejections.out == 1


def test_while_more_than_half_are_out_they_are_tried_at_the_first_interval() -> None:
    ejections, replicas = Ejections(), [(str(number), "life") for number in range(4)]
    delays = [ejections.failed(each, 4, 0.0, MIDDLE) for each in replicas[:2] for _ in range(5)]
    assert delays[-1] == pytest.approx(1.6), "half of them may be out"
    assert ejections.failed(replicas[2], 4, 0.0, MIDDLE) == FIRST_S
    assert ejections.failed(replicas[0], 4, 0.0, MIDDLE) == FIRST_S
    ejections.came_back(replicas[2], 1.0)
    assert ejections.failed(replicas[0], 4, 1.0, MIDDLE) == LONGEST_S


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_only_replica_is_never_out_for_long(replicas: int) -> None:
    ejections, each = Ejections(), EACH
    delays = [ejections.failed(each, replicas, 0.0, MIDDLE) for _ in range(10)]
    assert (max(delays) == FIRST_S) is (replicas == 1)


def test_who_leaves_is_out_no_more() -> None:
    ejections, one, other = Ejections(), ("one", "life"), ("other", "life")
    ejections.failed(one, 2, 0.0, MIDDLE)
    ejections.failed(other, 2, 0.0, MIDDLE)
    ejections.forget(one)
    ejections.forget(one)
    assert ejections.out == 1
    ejections.came_back(other, 1.0)
    ejections.came_back(other, 1.0)
    ejections.forget(other)
    assert ejections.out == 0


# -- by way of the scheduler -------------------------------------------------------------------------------------------


def retry_in_s(world: World, each: RoutedReplica) -> float:
    """The replica's link has failed: when it is tried again."""
    (command,) = world.scheduler.step(LinkFailed(each), world.now)
    assert isinstance(command, RetryLink)
    assert command.replica is each
    return command.delay_s


def test_a_link_that_fails_again_and_again_is_tried_less_and_less_until_it_holds() -> None:
    world = World({"b": ["r1", "r2", "r3"]})
    world.lose("r1")
    each = world.replicas["r1"]
    delays = [retry_in_s(world, each) for _ in range(8)]
    assert max(delays) > 1.5
    world.link("r1")
    world.now = HEALTHY_S
    world.lose("r1")
    assert retry_in_s(world, each) <= FIRST_S


def test_replicas_that_left_are_out_no_more_and_are_left_alone() -> None:
    world = World({"b": ["r1", "r2"]})
    world.lose("r1")
    leaving = world.replicas["r1"]
    retry_in_s(world, leaving)
    ejections = world.scheduler.topology.backends["b"].ejections
    assert ejections.out == 1
    world.backends["b"] = ["r2"]
    world.push()
    assert ejections.out == 0
    assert retry_in_s(world, leaving) == LONGEST_S
    assert ejections.out == 0
