"""Correlation of run ids, and the choice of a replica."""

from __future__ import annotations

from router_service.core.backends import Backend
from router_service.core.balancers.least_loaded import LeastLoaded
from router_service.core.callers import Caller, Window
from router_service.core.calls import CallOptions, Run
from router_service.core.replicas import Capacity, Replica
from router_service.core.table import BackendRoute, ReplicaRoute

CALLER = Caller(Window(calls=1, bytes=1))


def replica(name: str = "r", max_ongoing: int = 10) -> Replica:
    route = ReplicaRoute(key=(name, "life"), address="", max_ongoing=max_ongoing)
    each = Replica(route, Backend(BackendRoute(name="b")))
    each.linked = True
    return each


def run(count: int) -> Run:
    return Run(
        seq=1,
        caller=CALLER,
        endpoint="e",
        options=CallOptions(),
        ids=range(1, count + 1),
        payloads=[b""] * count,
        arrived=0.0,
    )


def test_run_ids_are_cut_into_slices_wherever_they_come_from() -> None:
    each = replica()
    first, second = run(3), run(3)
    a = each.send(first, 3, 0)
    b = each.send(second, 3, 0)
    assert [(sent, offset, at, count) for sent, offset, at, count in each.slices([2, 3, 4, 99, 6, 1])] == [
        (a, 1, 0, 2),
        (b, 0, 2, 1),
        (b, 2, 4, 1),
        (a, 0, 5, 1),
    ]


def test_an_answer_counts_once() -> None:
    each = replica()
    sent = each.send(run(4), 4, 0)
    assert sent.take(1, 2) == [(1, 2)]
    assert sent.take(0, 4) == [(0, 1), (3, 1)]
    assert sent.take(0, 4) == []
    assert sent.remaining == 0


def test_the_open_parts_are_what_was_not_answered() -> None:
    sent = replica().send(run(5), 5, 0)
    assert sent.open_parts() == [(0, 5)]
    sent.take(1, 1)
    sent.take(3, 1)
    assert sent.open_parts() == [(0, 1), (2, 1), (4, 1)]


def test_long_lived_slices_do_not_keep_the_index_of_ended_ones() -> None:
    each = replica(max_ongoing=10**6)
    stays = each.send(run(1), 1, 0)
    for _ in range(10_000):
        sent = each.send(run(1), 1, 0)
        each.answered(sent, len(sent.take(0, 1)))
    assert len(each._starts) < 500  # the bound is what is tested
    assert [sent for sent, *_ in each.slices([stays.first])] == [stays]


def test_the_least_loaded_goes_first_by_share_of_its_permits() -> None:
    balancer = LeastLoaded()
    small, large = replica("small", 2), replica("large", 10)
    for each in (small, large):
        balancer.changed(each)
    small.own, large.own = 1, 4
    for each in (small, large):
        balancer.changed(each)
    assert balancer.pick() is large
    large.own = 10
    balancer.changed(large)
    assert balancer.pick() is small
    small.own = 2
    balancer.changed(small)
    assert balancer.pick() is None


def test_equals_take_turns() -> None:
    balancer = LeastLoaded()
    replicas = [replica(str(number), 100) for number in range(4)]
    for each in replicas:
        balancer.changed(each)
    picked = []
    for _ in range(12):
        turn = balancer.pick()
        assert turn is not None
        turn.own += 1
        balancer.changed(turn)
        picked.append(turn.replica_id)
    assert picked == [str(number) for number in range(4)] * 3


def test_the_load_of_others_is_counted() -> None:
    balancer = LeastLoaded()
    one, two = replica("one"), replica("two")
    one.capacity = Capacity(max_ongoing=10, others=10)
    for each in (one, two):
        balancer.changed(each)
    assert balancer.pick() is two
    one.capacity = Capacity(max_ongoing=10, others=0)
    two.linked = False
    for each in (one, two):
        balancer.changed(each)
    assert balancer.pick() is one


def test_many_changes_do_not_pile_up() -> None:
    balancer = LeastLoaded()
    each = replica()
    for _ in range(10_000):
        balancer.changed(each)
    assert len(balancer._heap) < 1_000  # the bound is what is tested
