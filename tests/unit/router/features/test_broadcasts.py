"""Broadcasts in the router's core: which replicas, when each call is sent, and what ends it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from router_service.core.events import CallerLeft
from router_service.core.features import broadcasts
from router_service.core.features.broadcasts import BroadcastClosed, BroadcastOutcomesTaken, BroadcastRequested
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller, options

PAYLOAD = b"7"
"""In these tests a call of a broadcast is call 7 at each replica; its outcome has the place of the replica, from 1."""


def begin(world: World, backend: str = "", **fields: Any) -> Caller:
    by = caller()
    given = options(timeout_s=fields.pop("timeout_s", 60.0), **fields)
    world.step(BroadcastRequested(by, "e", given, PAYLOAD, backend))
    return by


def sent_to(world: World, *names: str) -> list[str]:
    return [each for each in names if world.at_replica(each) == [7]]


def test_all_replicas_of_backends_with_a_share_that_do_not_drain_are_called() -> None:
    world = World({"b": ["b1", "b2", "b3"], "c": ["c1"], "none": ["n1"]}, weights={"b": 0.5, "c": 0.5, "none": 0.0})
    world.drain("b2")
    world.suspects = {"b3"}
    world.push()
    begin(world)
    assert world.targets == ["b1", "b3", "c1"]
    assert sent_to(world, "b1", "b2", "b3", "c1", "n1") == ["b1", "b3", "c1"], "a suspect one, too"
    for name in world.targets:
        world.complete(name)
    assert world.outcomes == {1: OK, 2: OK, 3: OK}
    begin(world, "none")
    assert world.targets == ["n1"], "a backend may be named that has no share now"


def test_too_many_replicas_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "MAX_TARGETS", 2)
    world = World({"b": ["r1", "r2", "r3"]})
    begin(world)
    refused = world.failure_commands[-1].failure
    assert (refused.reason, refused.metadata["field"]) == (Reason.BAD_REQUEST, "backend")
    assert "at most 2 replicas, and there are 3" in refused.message
    assert not sent_to(world, "r1", "r2", "r3")


def test_a_full_replica_is_waited_for_and_served_ahead_of_its_queue() -> None:
    world = World({"b": ["r1", "r2"]}, slots=1)
    world.submit([101, 102, 103])
    begin(world)
    assert world.at_replica("r1") == [101]
    world.complete("r1")
    assert world.at_replica("r1") == [7], "ahead of the call that waits in the queue"
    assert world.at_replica("r2") == [102]
    world.complete("r1")
    assert world.at_replica("r1") == [103]
    assert world.outcomes[1] == OK


def test_only_some_calls_are_under_way_until_the_client_has_taken_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "MAX_UNDER_WAY", 2)
    names = ["r1", "r2", "r3", "r4"]
    world = World({"b": names})
    by = begin(world)
    assert sent_to(world, *names) == ["r1", "r2"]
    world.complete("r1")
    assert sent_to(world, *names) == ["r2"], "its result is not taken yet"
    world.step(BroadcastOutcomesTaken(by, [1]))
    assert sent_to(world, *names) == ["r2", "r3"]


def test_large_results_let_fewer_calls_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "MAX_UNDER_WAY", 2)
    monkeypatch.setattr(broadcasts, "MAX_RESULT_BYTES", 2 * len(b"result") - 1)
    names = ["r1", "r2", "r3", "r4"]
    world = World({"b": names})
    by = begin(world)
    world.complete("r1")
    world.step(BroadcastOutcomesTaken(by, [1]))
    assert sent_to(world, *names) == ["r2"], "one is enough for the bytes"
    world.complete("r2")
    world.step(BroadcastOutcomesTaken(by, [2]))
    assert sent_to(world, *names) == ["r3"]


def test_a_replica_that_had_no_room_gets_the_call_again_and_no_other_one_does() -> None:
    world = World({"b": ["r1", "r2"]})
    begin(world)
    world.complete("r2")
    world.refuse("r1", 7, others=4)
    assert not sent_to(world, "r1", "r2")
    world.report("r1")
    assert sent_to(world, "r1", "r2") == ["r1"]
    world.refuse("r1", 7, reason=Reason.DRAINING)
    assert world.outcomes == {2: OK, 1: "DRAINING"}
    assert world.failures[1].executed is Executed.NO


def test_a_lost_call_is_not_sent_again_though_it_is_idempotent_and_one_that_was_not_sent_waits_for_the_link() -> None:
    world = World({"b": ["r1", "r2"]}, lazy=True)
    begin(world, idempotent=True)
    world.cut("r1")
    world.lose("r1")
    world.lose("r2")
    assert world.outcomes == {1: "REPLICA_LOST"}
    assert world.failures[1].executed is Executed.UNKNOWN
    world.link("r1")
    world.link("r2")
    assert world.cut("r1") == []
    assert len(world.cut("r2")) == 1
    world.complete("r2")
    assert world.outcomes == {1: "REPLICA_LOST", 2: OK}


@pytest.mark.parametrize("drains", [True, False])
def test_a_replica_that_leaves_before_the_call_was_sent_fails_it_immediately(drains: bool) -> None:
    world = World({"b": ["r1", "r2"]}, slots=1)
    world.submit([101, 102])
    begin(world)
    if drains:
        world.drain("r1")
    else:
        world.backends["b"] = ["r2"]
        world.push()
    assert world.outcomes == {1: "DRAINING"}
    assert (world.failures[1].executed, world.failures[1].metadata["replica_id"]) == (Executed.NO, "r1")
    assert ("drains" in world.failures[1].message) is drains


def test_beside_the_subset_a_link_is_opened_and_stays_while_the_call_waits() -> None:
    names = [f"r{number}" for number in range(12)]
    world = World({"b": names}, subset_size=2, routers=("me", "other", "third", "fourth"), slots=1)
    replicas = world.scheduler.topology.replicas.values()
    strangers = [each.replica_id for each in replicas if not each.has_link]
    assert strangers
    begin(world, timeout_s=500.0)
    assert all(each.has_link for each in replicas), "each link is opened"
    world.at(100.0)
    for name in strangers:
        world.link(name)
    assert sent_to(world, *names) == names
    assert not any(each.link_users for each in replicas)


def test_what_was_not_sent_is_forgotten_when_the_caller_leaves_and_ends_in_time() -> None:
    world = World({"b": ["r1"]}, slots=1)
    world.submit([101])
    late = begin(world, timeout_s=5.0)
    left = begin(world, timeout_s=inf)
    world.step(CallerLeft(left))
    assert world.outcomes.pop(1) == "CANCELLED"
    world.at(5.0)
    assert world.outcomes == {1: "DEADLINE_IN_QUEUE"}
    world.complete("r1")
    assert not sent_to(world, "r1")
    world.step(BroadcastClosed(late))
    assert not world.scheduler._parts.sender.awaited
    assert not world.scheduler._parts.broadcasts.under_way


def test_how_broadcasts_ended_is_counted_once_for_each() -> None:
    world = World({"b": ["r1", "r2"]})
    counted = world.scheduler.counters.broadcasts
    well = begin(world)
    world.complete("r1")
    world.complete("r2")
    assert not counted, "its client has not taken all"
    world.step(BroadcastClosed(well))
    world.step(BroadcastClosed(well))
    world.outcomes.clear()
    begin(world, "unknown")
    left = begin(world)
    world.step(CallerLeft(left))
    world.step(BroadcastClosed(left))
    world.outcomes.clear()
    badly = begin(world)
    world.complete("r1")
    world.lose("r2")
    world.step(BroadcastClosed(badly))
    assert counted == {("e", end): 1 for end in ("completed", "failed", "refused", "cancelled")}


def test_the_link_to_a_replica_that_leaves_before_its_call_was_sent_closes() -> None:
    world = World({"b": ["r1", "r2"]}, links_at_once=False)
    world.link("r2")
    begin(world)
    world.backends["b"] = ["r2"]
    world.push()
    assert world.outcomes == {1: Reason.DRAINING}
    assert world.closed == ["r1"]
