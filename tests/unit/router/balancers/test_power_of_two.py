"""The less loaded of two replicas drawn at random."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from router_service.core.balancers.power_of_two import PowerOfTwo
from router_service.core.replicas.replica import RoutedReplica
from tests.unit.router.parts import chance, replica


def balancer_of(*replicas: RoutedReplica, seed: int = 0) -> PowerOfTwo[RoutedReplica]:
    balancer = PowerOfTwo[RoutedReplica](chance(seed))
    for each in replicas:
        balancer.changed(each)
    return balancer


@pytest.mark.parametrize("seed", range(20))
def test_of_two_the_lesser_is_picked(seed: int) -> None:
    idle, busy = replica("idle"), replica("busy")
    busy.own = 1
    assert balancer_of(idle, busy, seed=seed).pick() is idle
    assert balancer_of(busy, idle, seed=seed).pick() is idle


def test_the_most_loaded_of_many_is_never_picked_and_the_least_most_often() -> None:
    replicas = [replica(str(number)) for number in range(5)]
    for number, each in enumerate(replicas):
        each.own = number
    balancer = balancer_of(*replicas)
    picked = Counter(balancer.pick() for _ in range(10_000))
    pairs = list(combinations(range(5), 2))
    for number, each in enumerate(replicas):
        share = sum(min(pair) == number for pair in pairs) / len(pairs)
        assert abs(picked[each] - 10_000 * share) < 200, "two different ones are drawn, each pair alike"


def test_equals_are_picked_evenly() -> None:
    replicas = [replica(str(number)) for number in range(4)]
    balancer = balancer_of(*replicas)
    picked = Counter(balancer.pick() for _ in range(10_000))
    assert all(abs(count - 2500) < 200 for count in picked.values())


def test_who_has_no_room_is_not_drawn() -> None:
    replicas = [replica(str(number), 1) for number in range(4)]
    balancer = balancer_of(*replicas)
    left = set(replicas)
    while left:
        each = balancer.pick()
        assert each in left
        left.discard(each)
        each.own += 1
        balancer.changed(each)
    assert balancer.pick() is None
    replicas[2].own = 0
    balancer.changed(replicas[2])
    assert balancer.pick() is replicas[2]


@pytest.mark.parametrize("gone", range(4))
def test_any_of_them_may_leave(gone: int) -> None:
    replicas = [replica(str(number)) for number in range(4)]
    balancer = balancer_of(*replicas)
    leaving = replicas[gone]
    leaving.draining = True
    leaving.refresh()
    for _ in range(2):  # once is as good as twice
        balancer.changed(leaving)
    picked = {balancer.pick() for _ in range(200)}
    assert picked == set(replicas) - {leaving}


@pytest.mark.parametrize("seed", range(5))
def test_after_many_changes_exactly_those_with_room_are_drawn(seed: int) -> None:
    draw, replicas = random.Random(seed), [replica(str(number), 1) for number in range(6)]
    balancer = balancer_of(*replicas, seed=seed)
    for _ in range(200):
        each = draw.choice(replicas)
        each.own = draw.randrange(2)
        balancer.changed(each)
        having_room = {one for one in replicas if not one.own}
        assert {balancer.pick() for _ in range(100)} == set(having_room or [None])
