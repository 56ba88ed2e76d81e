"""Calls that have not ended, as the core lists them: each once, where it is, by key and by age."""

from __future__ import annotations

from typing import Any

from router_service.core.routing.open_calls import OpenCall, OpenCallsFilter, OpenCallState
from tests.unit.router.world import World

WAITING, SENDING, AT_REPLICA = OpenCallState.WAITING, OpenCallState.SENDING, OpenCallState.AT_REPLICA


def listed(world: World, *, runs: int = 1, **wanted: Any) -> list[OpenCall]:
    """By a scan of small steps."""
    scan = world.scheduler.scan_calls(OpenCallsFilter(**wanted), [world.caller])
    while not scan.step(runs):
        pass
    calls = scan.calls(world.now)
    assert scan.waiting + scan.at_replicas >= len(calls)
    return calls


def test_calls_of_a_column_are_told_apart_by_their_keys() -> None:
    world = World({"b": ["left"]}, owner=("left", 1), lazy=True)
    world.submit_column("abacba")
    assert [call.ordering_key for call in listed(world)] == list("abacba")
    assert {call.state for call in listed(world)} == {SENDING}
    world.cut("left")
    assert [call.ordering_key for call in listed(world, ordering_key="a")] == ["a", "a", "a"]
    world.complete("left", 1)
    of_a = listed(world, ordering_key="a")
    assert [(call.state, call.replica_id, call.backend) for call in of_a] == [(AT_REPLICA, "left", "b")] * 2
    assert not listed(world, ordering_key="z")


def test_the_oldest_come_first_wherever_they_are() -> None:
    world = World({"b": ["left"]}, slots=1)
    for number in range(1, 5):
        world.at(float(number))
        world.submit([number], tenant=f"t{number}")
    world.at(10.0)
    calls = listed(world)
    assert [(call.age_s, call.tenant, call.state) for call in calls] == [
        (9.0, "t1", AT_REPLICA),
        *((10.0 - number, f"t{number}", WAITING) for number in range(2, 5)),
    ]
    assert calls[0].sent_age_s == 9.0
    assert calls[1].waits_for.startswith("no replica of b had room")
    assert [call.tenant for call in listed(world, limit=2)] == ["t1", "t2"]
    assert [call.tenant for call in listed(world, states=frozenset({WAITING}), limit=1)] == ["t2"]
    assert [call.age_s for call in listed(world, tenant="t3")] == [7.0]


def test_a_call_that_is_sent_between_two_steps_is_listed_once() -> None:
    world = World({"b": ["left"]}, slots=1)
    world.submit([1])
    world.submit([2])
    scan = world.scheduler.scan_calls(OpenCallsFilter(), [world.caller])
    assert not scan.step(1)
    world.complete("left", 1)
    while not scan.step(1):
        pass
    assert [call.state for call in scan.calls(world.now)] == [AT_REPLICA]
