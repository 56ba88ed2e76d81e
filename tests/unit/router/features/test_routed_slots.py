"""Slots of balancers with hooks: what is kept of them."""

from __future__ import annotations

from router_service.core.features.routed_slots import RoutedSlots
from router_service.core.replicas.replica import RoutedReplica
from tests.unit.router.world import World


def replica() -> RoutedReplica:
    return World({"b": ["r1"]}).replicas["r1"]


def test_slots_that_are_used_at_once_leave_nothing() -> None:
    slots, at = RoutedSlots(), replica()
    slots.lease("oldest", at, 299.0)
    for number in range(1_000):
        slots.lease(f"t{number}", at, 300.0 + number)
        assert slots.take(f"t{number}") is at
    assert len(slots) == 1
    assert len(slots.leases) < 100
    assert slots.next_deadline() == 299.0


def test_renewing_leaves_nothing_either() -> None:
    slots, at = RoutedSlots(), replica()
    for number in range(1_000):
        slots.lease("t", at, float(number))
    assert len(slots.leases) < 100
    assert slots.pop_due(998.0) == []
    assert slots.pop_due(999.0) == [at]
    assert slots.next_deadline() is None
