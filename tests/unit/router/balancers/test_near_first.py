"""Near replicas first, until they are full."""

from __future__ import annotations

import pytest

from router_service.core.balancers import new_balancer
from router_service.core.balancers.near_first import NearFirst
from router_service.core.counters import BackendCounts
from router_service.core.limits.capacity import MethodTime, ReportedCapacity
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing_table import BackendRoute, ReplicaRoute
from slotmesh.balancers import ANY_CALLS
from slotmesh.spec.model import BUILT_IN_BALANCERS, Backend
from tests.unit.router.parts import chance


def backend(balancer: str = "least_loaded", zone: str = "z") -> RoutedBackend[RoutedReplica]:
    settings = Backend(name="b", balancer=balancer)
    return RoutedBackend(BackendRoute(settings=settings), BackendCounts({"e"}), chance(), zone=zone)


def add(of: RoutedBackend[RoutedReplica], name: str, zone: str, max_ongoing: int = 2) -> RoutedReplica:
    each = RoutedReplica(ReplicaRoute(key=(name, ""), address="", max_ongoing=max_ongoing, zone=zone), of)
    each.linked, each.capacity = True, ReportedCapacity(max_ongoing=max_ongoing)
    of.replicas[each.key] = each
    of.changed(each)
    return each


def start(of: RoutedBackend[RoutedReplica], each: RoutedReplica, calls: int) -> None:
    each.own += calls
    of.load_changed(each)


def picks(of: RoutedBackend[RoutedReplica], count: int) -> list[str]:
    found = []
    for _ in range(count):
        each = of.pick("m")
        assert each is not None
        found.append(each.replica_id)
        start(of, each, 1)
    return found


@pytest.mark.parametrize("balancer", BUILT_IN_BALANCERS)
def test_near_ones_are_filled_before_others(balancer: str) -> None:
    of = backend(balancer)
    for name, zone in (("far", "y"), ("near", "z"), ("nowhere", ""), ("near too", "z")):
        add(of, name, zone)
    found = picks(of, 8)
    assert sorted(found[:4]) == ["near", "near", "near too", "near too"]
    assert sorted(found[4:]) == ["far", "far", "nowhere", "nowhere"]
    assert of.pick("m") is None


@pytest.mark.parametrize(("router", "replicas"), [("", ("z", "y")), ("", ("", "")), ("z", ("x", "y"))])
def test_without_near_ones_nothing_differs(router: str, replicas: tuple[str, str]) -> None:
    of = backend("round_robin", router)
    for number, zone in enumerate(replicas):
        assert not add(of, f"r{number}", zone, 4).is_near
    assert sorted(picks(of, 4)) == ["r0", "r0", "r1", "r1"]


def test_one_that_has_room_again_goes_before_others() -> None:
    of = backend()
    near, far = add(of, "near", "z", 1), add(of, "far", "y", 1)
    assert picks(of, 2) == ["near", "far"]
    start(of, far, -1)
    start(of, near, -1)
    assert of.pick("m") is near


def test_quick_calls_do_not_join_others_while_there_are_near_ones() -> None:
    of = backend()
    near, far = add(of, "near", "z", 1), add(of, "far", "y", 8)
    for each in (near, far):
        each.times = {"m": MethodTime(1e-5)}
    start(of, near, 1)
    assert of.pick("m") is far
    far.work_ns = 10_000
    start(of, far, 1)
    start(of, near, -1)
    assert of.pick("m") is near
    near.draining = True
    of.changed(near)
    assert (of.near, of.candidates) == (0, 1)
    assert of.pick("m") is far
    assert of.filling is far


def test_a_zone_that_is_known_later_counts_from_then_on() -> None:
    of = backend()
    one, two = add(of, "one", ""), add(of, "two", "")
    two.place("z")
    of.rebuild_balancer()
    assert (of.near, two.is_near, one.is_near) == (1, True, False)
    assert picks(of, 2) == ["two", "two"]


def test_each_of_the_two_has_its_own() -> None:
    both = NearFirst[RoutedReplica](lambda: new_balancer("least_loaded", chance()))
    assert both.pick(ANY_CALLS, ()) is None
