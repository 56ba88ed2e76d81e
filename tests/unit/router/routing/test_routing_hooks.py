"""Hooks of balancers: what was placed, and how it ended."""

from __future__ import annotations

import pytest

from router_service.core.balancers.least_loaded import LeastLoaded
from router_service.core.calls import ReleasedSlot
from router_service.core.events import RunsCompleted
from router_service.core.limits.capacity import KnownReplica
from router_service.core.replicas.replica import RoutedReplica
from slotmesh.balancers import CallEnd, FollowsCalls
from tests.unit.router.slot_world import SlotWorld, slot


class Listener(LeastLoaded[RoutedReplica]):
    """Writes down what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, int]] = []

    def sent(self, replica: KnownReplica, count: int, /) -> None:
        self.heard.append(("sent", count))

    def ended(self, replica: KnownReplica, count: int, end: CallEnd, latency_s: float, /) -> None:
        self.heard.append((f"{end.value} after {latency_s:g}", count))


@pytest.fixture
def world() -> SlotWorld:
    return SlotWorld({"b": ["r1"]}, slots=4)


@pytest.fixture
def heard(world: SlotWorld) -> list[tuple[str, int]]:
    listener = Listener()
    world.scheduler.topology.backends["b"].hooks = listener
    return listener.heard


def test_policies_without_hooks_are_not_told() -> None:
    assert isinstance(Listener(), FollowsCalls)
    assert not isinstance(LeastLoaded(), FollowsCalls)


def test_calls_complete(world: SlotWorld, heard: list[tuple[str, int]]) -> None:
    world.submit([1, 2, 3])
    world.now = 2.0
    world.complete("r1", 1)
    world.complete("r1")
    assert heard == [("sent", 3), ("well after 2", 1), ("well after 2", 2)]


def test_calls_that_are_refused_lost_or_taken_back(world: SlotWorld, heard: list[tuple[str, int]]) -> None:
    world.submit([1, 2])
    world.refuse("r1", 2, others=3)
    world.lose("r1")
    assert heard == [("sent", 2), ("unused after 0", 1), ("unused after 0", 1)]
    world.link("r1")
    world.lazy = True
    world.submit([3])
    world.cancel((3, 3))
    assert heard[-2:] == [("sent", 1), ("unused after 0", 1)]


def test_a_slot_that_is_used_is_one_pair(world: SlotWorld, heard: list[tuple[str, int]]) -> None:
    world.reserve()
    world.grant("r1", "t1")
    world.now = 1.0
    world.dispatch("r1", "t1")
    world.now = 4.0
    op_id = world.ops["r1"][-1].op_id
    world.step(RunsCompleted(world.replicas["r1"], [([op_id], [b""], "")], [], None))
    assert heard == [("sent", 1), ("well after 3", 1)]
    assert world.scheduler.next_deadline() is None


def test_a_slot_that_is_released(world: SlotWorld, heard: list[tuple[str, int]]) -> None:
    world.reserve()
    world.grant("r1", "t1")
    world.release("r1", "t1")
    world.answer("r1", ReleasedSlot())
    assert heard == [("sent", 1), ("unused after 0", 1)]


def test_a_slot_whose_lease_is_over(world: SlotWorld, heard: list[tuple[str, int]]) -> None:
    world.reserve()
    world.grant("r1", "t1")
    world.renew("r1", "t1")
    world.now = 5.0
    world.answer("r1", slot("r1", "t1"))
    world.at(14.9)
    assert heard == [("sent", 1)]
    world.at(15.0)
    assert heard == [("sent", 1), ("unused after 0", 1)]


def test_a_slot_that_another_router_has_given(world: SlotWorld, heard: list[tuple[str, int]]) -> None:
    world.dispatch("r1", "t9")
    world.lose("r1")
    assert heard == [("sent", 1), ("unused after 0", 1)]
