"""The replica with the smallest share of its permits in use."""

from __future__ import annotations

import pytest

from router_service.core.balancers.least_loaded import SHARED_PICKS, LeastLoaded
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.replica import RoutedReplica
from tests.unit.router.parts import replica


def balancer_of(*replicas: RoutedReplica) -> LeastLoaded[RoutedReplica]:
    balancer = LeastLoaded[RoutedReplica]()
    for each in replicas:
        balancer.changed(each)
    return balancer


def start(balancer: LeastLoaded[RoutedReplica], each: RoutedReplica, calls: int) -> None:
    each.own += calls
    balancer.changed(each)


def test_the_smallest_share_of_its_permits_goes_first() -> None:
    small, large = replica("small", 2), replica("large", 10)
    balancer = balancer_of(small, large)
    start(balancer, small, 1)
    start(balancer, large, 4)
    assert balancer.pick() is large
    start(balancer, large, 6)
    assert balancer.pick() is small
    start(balancer, small, 1)
    assert balancer.pick() is None


@pytest.mark.parametrize("rounds", [1, 5])
def test_equals_take_turns(rounds: int) -> None:
    replicas = [replica(str(number), 100) for number in range(4)]
    balancer = balancer_of(*replicas)
    picked = []
    for _ in range(4 * rounds):
        turn = balancer.pick()
        assert turn is not None
        start(balancer, turn, 1)
        picked.append(turn.replica_id)
    assert picked == ["0", "1", "2", "3"] * rounds


def test_alone_with_its_replicas_a_router_gives_them_turns() -> None:
    """Nothing that it knows of the one that has just answered is surer than what it knows of the rest."""
    replicas = [replica(str(number), 1) for number in range(3)]
    balancer = balancer_of(*replicas)
    for each in replicas:
        start(balancer, each, 1)
    for each in (replicas[2], replicas[0], replicas[1]):
        start(balancer, each, -1)
    assert balancer.pick() is replicas[2], "the one that has been idle for longest"


def tell(balancer: LeastLoaded[RoutedReplica], each: RoutedReplica, others: int) -> None:
    """The replica's report of what others have there."""
    each.capacity = each.capacity._replace(others=others)
    each.refresh()
    balancer.changed(each)


def test_beside_other_routers_the_slot_that_has_just_become_free_goes_first() -> None:
    idle, shared, told, mine = (replica(name, 2) for name in ("idle", "shared", "told", "mine"))
    balancer = balancer_of(idle, shared, told, mine)
    start(balancer, mine, 1)
    tell(balancer, shared, 2)
    tell(balancer, told, 2)
    start(balancer, mine, -1)
    assert balancer.pick() is mine
    start(balancer, mine, 1)
    tell(balancer, told, 0)
    assert balancer.pick() is idle, "a slot that others hear of as well is not taken for sure"
    start(balancer, mine, -1)
    tell(balancer, shared, 0)
    start(balancer, idle, 1)
    start(balancer, idle, -1)
    assert balancer.pick() is idle, "others may be back at any moment"
    for _ in range(SHARED_PICKS):
        balancer.pick()
    start(balancer, idle, 1)
    start(balancer, idle, -1)
    assert balancer.pick() is not idle, "nobody else was seen for long: turns again"


def test_a_replica_that_comes_back_empty_has_not_ended_anything() -> None:
    idle, shared, back = (replica(name, 2) for name in ("idle", "shared", "back"))
    balancer = balancer_of(idle, shared, back)
    tell(balancer, shared, 2)
    start(balancer, back, 2)
    for linked in (False, True):
        back.own, back.linked = 0, linked
        back.refresh()
        balancer.changed(back)
    assert balancer.pick() is idle


def test_the_load_of_others_is_counted() -> None:
    one, two = replica("one", others=10), replica("two")
    balancer = balancer_of(one, two)
    assert balancer.pick() is two
    one.capacity = ReportedCapacity(max_ongoing=10)
    two.linked = False
    for each in (one, two):
        each.refresh()
        balancer.changed(each)
    assert balancer.pick() is one


@pytest.mark.parametrize("change", ["linked", "draining", "is_passed_over"])
def test_who_takes_nothing_is_not_picked_and_comes_back(change: str) -> None:
    one, two = replica("one"), replica("two")
    balancer = balancer_of(one, two)
    setattr(one, change, not getattr(one, change))
    one.refresh()
    balancer.changed(one)
    assert balancer.pick() is two
    setattr(one, change, not getattr(one, change))
    one.refresh()
    balancer.changed(one)
    start(balancer, two, 1)
    assert balancer.pick() is one


def test_prefetch_is_filled_after_all_permits() -> None:
    deep, plain = replica("deep", 2, prefetch=4), replica("plain", 8)
    balancer = balancer_of(deep, plain)
    start(balancer, deep, 2)
    start(balancer, plain, 7)
    assert balancer.pick() is plain
    start(balancer, plain, 1)
    assert balancer.pick() is deep


def test_many_changes_do_not_pile_up() -> None:
    each = replica(max_ongoing=100)
    balancer = balancer_of(each)
    for number in range(10_000):
        each.own = number % 100
        balancer.changed(each)
    assert len(balancer._order) <= 101  # the bound is what is tested
    assert len(balancer._levels) <= 101
