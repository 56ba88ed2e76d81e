"""One replica after another."""

from __future__ import annotations

from collections import Counter

import pytest

from router_service.core.balancers.round_robin import RoundRobin
from router_service.core.replicas.replica import RoutedReplica
from tests.unit.router.parts import chance, replica


def balancer_of(*replicas: RoutedReplica, seed: int = 0) -> RoundRobin[RoutedReplica]:
    balancer = RoundRobin[RoutedReplica](chance(seed))
    for each in replicas:
        balancer.changed(each)
    return balancer


@pytest.mark.parametrize("seed", range(5))
def test_everyone_has_a_turn_in_the_same_order_again_and_again(seed: int) -> None:
    replicas = [replica(str(number)) for number in range(5)]
    balancer = balancer_of(*replicas, seed=seed)
    first = [balancer.pick() for _ in replicas]
    assert set(first) == set(replicas)
    for _ in range(3):
        assert [balancer.pick() for _ in replicas] == first


def test_load_does_not_matter_as_long_as_there_is_room() -> None:
    busy, idle = replica("busy"), replica("idle")
    balancer = balancer_of(busy, idle)
    for own in range(9):
        busy.own = own
        balancer.changed(busy)
        assert {balancer.pick(), balancer.pick()} == {busy, idle}


def test_who_is_full_is_left_out_and_has_turns_again_when_it_has_room() -> None:
    replicas = [replica(str(number), 1) for number in range(3)]
    balancer = balancer_of(*replicas)
    replicas[1].own = 1
    balancer.changed(replicas[1])
    assert {balancer.pick() for _ in range(6)} == {replicas[0], replicas[2]}
    replicas[1].own = 0
    balancer.changed(replicas[1])
    assert {balancer.pick() for _ in range(3)} == set(replicas)


def test_who_leaves_has_no_turn() -> None:
    one, two = replica("one"), replica("two")
    balancer = balancer_of(one, two)
    one.linked = False
    one.refresh()
    for _ in range(2):
        balancer.changed(one)
    assert [balancer.pick() for _ in range(3)] == [two] * 3
    two.linked = False
    two.refresh()
    balancer.changed(two)
    assert balancer.pick() is None


def test_routers_do_not_start_in_step() -> None:
    firsts = Counter[str]()
    for seed in range(300):
        first = balancer_of(*(replica(str(number)) for number in range(4)), seed=seed).pick()
        assert first is not None
        firsts[first.replica_id] += 1
    assert len(firsts) >= 3
    assert max(firsts.values()) < 200
