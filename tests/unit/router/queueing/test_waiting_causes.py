"""Calls that fail while they wait say what they waited for: replicas that are busy, or that are not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from router_service.core.calls import Reserve
from router_service.core.events import BrakeChanged, SlotRequested, TableReceived
from router_service.core.queueing.backend_queues import FEW_CALLS
from slotmesh.errors import Reason
from tests.unit.router.world import World
from tests.unit.router.world_callers import Fields, caller, options
from tests.unit.router.world_table import routing_table

UNKEYED: Fields = {}
SHARDED: Fields = {"shard_key": "s"}
KEYED: Fields = {"ordering_key": "k"}


def without_replica() -> World:
    return World({"b": []})


def with_replicas_that_drain() -> World:
    world = World({"b": ["r1", "r2"]}, owner=("r1", 1))
    world.drain("r1")
    world.drain("r2")
    return world


def with_a_replica_out_of_reach() -> World:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    world.links_at_once = False
    world.lose("r1")
    return world


def with_busy_replicas() -> World:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    world.report("r1", others=4, keyed_window=0)
    return world


def without_policy() -> World:
    return World({"b": ["r1"]}, weights=None)


def with_a_policy_of_an_unknown_backend() -> World:
    return World({"b": ["r1"]}, weights={"other": 1.0})


def without_owner() -> World:
    return World({"b": ["r1"]})


def with_calls_at_the_owner_before() -> World:
    world = World({"b": ["old", "new"]}, owner=("old", 1))
    world.submit([100], **KEYED)
    world.owner = ("new", 2)
    world.push()
    return world


def with_an_owner_that_refuses() -> World:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    world.submit([100], **KEYED)
    world.refuse("r1", reason=Reason.STALE_TABLE)
    return world


STATES = [
    (UNKEYED, without_replica, "there is no ready replica of b; `slotmesh status`"),
    (UNKEYED, with_replicas_that_drain, "all replicas of b drain (r1, r2), and there is no ready one"),
    (UNKEYED, with_a_replica_out_of_reach, "the router has no connection to any replica of b (r1)"),
    (UNKEYED, with_busy_replicas, "no replica of b had room; start more replicas"),
    (UNKEYED, without_policy, "endpoint e has no traffic policy; say which"),
    (UNKEYED, with_a_policy_of_an_unknown_backend, "the policy of endpoint e names other, which the router does not"),
    (SHARDED, without_replica, "there is no ready replica of b; `slotmesh status`"),
    (KEYED, without_replica, "there is no ready replica of b; `slotmesh status`"),
    (KEYED, with_replicas_that_drain, "replica r1, which owns the call's ordering key, drains"),
    (
        KEYED,
        with_a_replica_out_of_reach,
        "the router has no connection to replica r1, which owns the call's ordering key,",
    ),
    (KEYED, with_busy_replicas, "replica r1, which owns the call's ordering key, had no room"),
    (KEYED, without_policy, "endpoint e has no traffic policy; say which"),
    (KEYED, without_owner, "no replica owns the call's ordering key yet; see whether the controller runs"),
    (KEYED, with_calls_at_the_owner_before, "calls at the replica that owned its ordering key before have not ended"),
    (KEYED, with_an_owner_that_refuses, "replica r1, which owns the call's ordering key, owns it no longer"),
]
IDS = [f"{'-'.join(fields) or 'unkeyed'} {state.__name__}" for fields, state, _ in STATES]


@pytest.mark.parametrize(("fields", "state", "text"), STATES, ids=IDS)
def test_the_time_in_the_queue_is_over(fields: Fields, state: Callable[[], World], text: str) -> None:
    world = state()
    world.submit([1], **fields)
    world.at(30.0)
    assert world.outcomes[1] == Reason.QUEUE_TIMEOUT
    assert f"waited for 30 s, which is max_queue_time, and no replica took it: {text}" in said_of(world, 1)


@pytest.mark.parametrize(("fields", "state", "text"), STATES, ids=IDS)
def test_the_timeout_passes(fields: Fields, state: Callable[[], World], text: str) -> None:
    world = state()
    world.submit([1], timeout_s=2.0, **fields)
    world.at(2.0)
    assert world.outcomes[1] == Reason.DEADLINE_IN_QUEUE
    assert f"the timeout of 2 s passed before the call was sent to a replica: {text}" in said_of(world, 1)


@pytest.mark.parametrize(("fields", "state", "text"), STATES, ids=IDS)
def test_the_queue_is_full(fields: Fields, state: Callable[[], World], text: str) -> None:
    world = state()
    count = 20_001
    world.submit(range(1000, 1000 + count), **fields)
    assert world.outcomes[999 + count] == Reason.QUEUE_FULL
    message = said_of(world, 999 + count)
    if state is with_busy_replicas:
        assert message.endswith("try again later, or raise max_queued_calls or max_queued_bytes")
    else:
        assert "bytes wait; " + text in message


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (without_replica, "there is no ready replica of b"),
        (with_replicas_that_drain, "all replicas of b drain (r1, r2)"),
        (with_busy_replicas, "allow more time (options.timeout), more replicas, or a higher max_ongoing"),
    ],
)
def test_no_slot_is_free_in_time(state: Callable[[], World], text: str) -> None:
    world = state()
    world.step(SlotRequested(caller(), "e", options(timeout_s=2.0), Reserve()))
    world.at(2.0)
    assert [each.failure.reason for each in world.failure_commands] == [Reason.NO_SLOT]
    assert f"no slot of e was free in 2 s: {text}" in world.failure_commands[0].failure.message


def test_a_reservation_that_names_a_replica_hears_of_that_one() -> None:
    world = World({"b": ["r1", "r2"]})
    world.drain("r2")
    world.step(SlotRequested(caller(), "e", options(timeout_s=2.0), Reserve(replica_id="r2")))
    world.at(2.0)
    assert "all replicas of b that the reservation accepts drain (r2)" in world.failure_commands[0].failure.message


def test_replicas_that_clients_of_sessions_do_not_know_yet() -> None:
    world = World({"b": ["r1"]}, owner=("r1", 1))
    world.connect()
    world.backends["b"] = ["r2"]
    world.owner = ("r2", 2)
    world.push()
    world.submit([1], timeout_s=0.1)
    world.submit([2], timeout_s=0.1, **KEYED)
    world.at(0.1)
    for call in (1, 2):
        assert "the only ready replicas (r2) are new, and clients of sessions do not all know" in said_of(world, call)


def test_a_call_that_has_had_no_time_did_not_wait() -> None:
    world = without_replica()
    world.submit([1], timeout_s=0.0)
    assert said_of(world, 1) == "the timeout of 0 s passed before the call was sent to a replica"


def test_clients_that_do_not_read() -> None:
    world = World({"b": ["r1"]}, slots=1000)
    world.step(BrakeChanged(is_braked=True))
    world.submit(range(1, FEW_CALLS + 2), timeout_s=2.0)
    world.at(2.0)
    assert "have too many results unread; read results always" in said_of(world, 1)


def test_calls_that_no_replica_has_room_for_wait_for_that_though_clients_do_not_read() -> None:
    world = with_busy_replicas()
    world.step(BrakeChanged(is_braked=True))
    world.submit([1], timeout_s=2.0)
    world.at(2.0)
    assert "no replica of b had room" in said_of(world, 1)


def test_only_some_replicas_are_named() -> None:
    world = World({"b": [f"r{number}" for number in range(6)]}, links_at_once=False)
    world.submit([1], timeout_s=2.0)
    world.at(2.0)
    assert "(r0, r1, r2, r3 and 2 more)" in said_of(world, 1)


def test_a_backend_that_is_deleted_while_calls_wait_for_it() -> None:
    world = World({"b": []})
    world.submit([1], timeout_s=2.0)
    table = routing_table(world, 99)
    world.step(TableReceived(replace(table, backends={})))
    world.at(2.0)
    assert "the policy of endpoint e names b, which the router does not know" in said_of(world, 1)


def said_of(world: World, call: int) -> str:
    return world.failures[call].message
