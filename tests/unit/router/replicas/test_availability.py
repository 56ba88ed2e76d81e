"""Calls go to backends that can serve; they wait for what is on its way, and fail where nothing is."""

from __future__ import annotations

from collections import Counter

import pytest

from router_service.core.calls import Reserve
from router_service.core.events import SlotRequested, TableReceived
from router_service.core.routing.traffic import choose
from slotmesh.errors import Executed, Reason
from slotmesh.spec.model import Prospect
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields, caller, options
from tests.unit.router.world_table import routing_table

GONE = (Prospect.FAILING, Prospect.NONE)
MAYBE = (Prospect.UNKNOWN, Prospect.COMING)
WEIGHTS = {"good": 0.9, "canary": 0.1}
WAYS: tuple[Fields, ...] = ({}, {"shard_key": "s1"}, {"shard_key": "s2"}, {"shard_key": "s3"})


def reserve(world: World, wish: Reserve | None = None) -> str:
    """Asks for a slot; returns why there is none, or nothing."""
    world.outcomes.clear()
    before = len(world.failure_commands)
    world.step(SlotRequested(caller(), "e", options(), wish or Reserve()))
    return "".join(each.failure.reason.value for each in world.failure_commands[before:])


def canary(*replicas: str, prospect: Prospect = Prospect.UNKNOWN, slots: int = 10**4) -> World:
    """A good version, and a canary with these replicas."""
    backends = {"good": ["g1"], "canary": list(replicas)}
    return World(backends, slots=slots, weights=WEIGHTS, prospects={"canary": prospect})


@pytest.mark.parametrize("prospect", Prospect)
def test_a_canary_that_does_not_start_gets_no_call(prospect: Prospect) -> None:
    world = canary(prospect=prospect)
    for call in range(0, 1000, 4):
        for at, fields in enumerate(WAYS):
            world.submit([call + at], **fields)
    assert world.got("g1") == [*range(1000)]
    assert not world.outcomes
    world.complete("g1")
    assert Counter(world.outcomes.values()) == {OK: 1000}


def test_weights_are_shares_of_what_can_serve() -> None:
    world = World({"a": ["a1"], "b": ["b1"], "c": []}, slots=10**5, weights={"a": 0.2, "b": 0.2, "c": 0.6})
    for first in range(0, 4000, 4):
        world.submit(range(first, first + 4))
    assert len(world.got("a1")) + len(world.got("b1")) == 4000
    assert abs(len(world.got("a1")) - 2000) < 200


def test_a_backend_has_its_share_again_when_it_can_serve() -> None:
    world = canary("c1")
    world.lose("c1")
    world.submit(range(1000))
    assert len(world.got("g1")) == 1000
    world.link("c1")
    world.submit(range(1000, 2000))
    assert 50 < len(world.got("c1")) < 200


def test_shard_keys_move_away_only_from_what_cannot_serve_and_come_back() -> None:
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    world = World({"a": ["a1"], "b": ["b1"], "c": ["c1"]}, slots=10**5, weights=weights)
    keys = [f"key-{number}" for number in range(300)]

    def homes(first: int) -> list[str]:
        for at, key in enumerate(keys):
            world.submit([first + at], shard_key=key)
        of = {call: name[0] for name in ("a1", "b1", "c1") for call in world.got(name)}
        return [of[first + at] for at in range(len(keys))]

    before = homes(0)
    assert before == [choose(key, weights) for key in keys]
    world.lose("b1")
    meanwhile = homes(1000)
    assert {old for old, new in zip(before, meanwhile, strict=True) if old != new} == {"b"}
    assert "b" not in meanwhile
    world.link("b1")
    assert homes(2000) == before


@pytest.mark.parametrize("how", ["lost", "drains", "leaves"])
def test_what_waits_for_a_backend_moves_when_that_cannot_serve_any_more(how: str) -> None:
    world = canary("c1", slots=1)
    world.submit(range(100))
    queued = world.queued
    assert queued["canary"] >= 1
    match how:
        case "lost":
            world.lose("c1")
        case "drains":
            world.drain("c1")
        case _:
            world.backends["canary"] = []
            world.push()
    lost = list(world.outcomes)
    assert world.queued == {"good": 99 - 1}
    assert len(lost) <= 1, "but what it had"
    while world.at_replica("g1"):
        world.complete("g1")
    assert Counter(world.outcomes.values())[OK] >= 99


@pytest.mark.parametrize("prospect", MAYBE)
@pytest.mark.parametrize("fields", [{}, {"shard_key": "s"}, {"ordering_key": "k"}])
def test_calls_wait_for_replicas_that_are_on_their_way(prospect: Prospect, fields: Fields) -> None:
    world = World({"b": []}, prospects={"b": prospect})
    world.submit([1], **fields)
    assert not world.outcomes
    world.backends["b"] = ["b1"]
    world.owner = ("b1", 1)
    world.push()
    assert world.at_replica("b1") == [1]


@pytest.mark.parametrize("prospect", GONE)
@pytest.mark.parametrize("fields", [{}, {"shard_key": "s"}, {"ordering_key": "k"}])
@pytest.mark.parametrize("waits", [False, True])
def test_calls_fail_at_once_where_nothing_is_on_its_way(prospect: Prospect, fields: Fields, waits: bool) -> None:
    world = World({"a": [], "b": []}, weights={"a": 0.5, "b": 0.5})
    if waits:
        world.submit([1, 2, 3], **fields)
        assert not world.outcomes
    world.prospects = {"a": prospect, "b": prospect}
    world.push()
    if not waits:
        world.submit([1, 2, 3], **fields)
    assert world.outcomes == dict.fromkeys([1, 2, 3], "BACKEND_UNAVAILABLE")
    failure = world.failures[1]
    assert failure.executed is Executed.NO
    assert failure.retry_delay_s is not None
    assert 0.8 <= failure.retry_delay_s <= 1.2
    assert failure.metadata == {"endpoint": "e"}
    said = {Prospect.FAILING: "fail to start", Prospect.NONE: "none should run"}[prospect]
    assert f"there is no ready replica of a (its replicas {said})".replace("its replicas none", "none") in str(failure)
    assert not world.queued
    world.prospects = {}
    world.push()
    world.submit([4], **fields)
    assert 4 not in world.outcomes, "unknown is not no"


def test_calls_wait_for_the_backend_that_is_on_its_way() -> None:
    world = World({"a": [], "b": []}, weights={"a": 0.99, "b": 0.01}, prospects={"a": Prospect.FAILING})
    world.submit(range(100))
    assert world.queued == {"b": 100}
    world.backends["a"] = ["a1"]
    world.push()
    assert world.queued == {"a": 96}, "and move to the one that can serve first"


def test_a_backend_that_scales_to_zero_fails_what_waits_when_its_last_replica_drains() -> None:
    world = World({"b": ["b1"]}, slots=1)
    world.submit([1, 2])
    world.prospects = {"b": Prospect.NONE}
    world.push()
    assert not world.outcomes, "a replica is there"
    world.drain("b1")
    assert world.outcomes == {2: "BACKEND_UNAVAILABLE"}
    world.complete("b1")
    assert world.outcomes[1] == OK


def test_calls_that_a_draining_replica_hands_back_go_where_they_can_run() -> None:
    world = canary("c1", slots=20)
    world.weights = {"canary": 1.0}
    world.push()
    world.submit([20, 21])
    assert {20, 21} <= set(world.at_replica("c1"))
    world.weights = WEIGHTS
    world.push()
    world.refuse("c1", 20, 21, reason=Reason.DRAINING, draining=True)
    assert {20, 21} <= set(world.at_replica("g1"))


@pytest.mark.parametrize("prospect", GONE)
def test_a_replica_that_is_cut_off_may_be_back(prospect: Prospect) -> None:
    world = World({"b": ["b1"]}, prospects={"b": prospect}, links_at_once=False)
    world.link("b1")
    world.lose("b1")
    world.submit([1])
    assert not world.outcomes
    world.link("b1")
    assert world.at_replica("b1") == [1]


def test_a_router_that_has_just_started_does_not_move_shard_keys() -> None:
    weights = {"a": 0.5, "b": 0.5}
    key = next(f"key-{number}" for number in range(100) if choose(f"key-{number}", weights) == "b")
    world = World({"a": ["a1"], "b": ["b1"]}, weights=weights, links_at_once=False)
    world.link("a1")
    world.submit([1], shard_key=key)
    assert world.queued == {"b": 1}, "the link to b1 is about to open"
    world.fail_link("b1")
    assert world.at_replica("a1") == [1], "it is not"
    world.link("b1")
    world.submit([2], shard_key=key)
    assert world.at_replica("b1") == [2]


def test_a_replica_that_is_new_gets_its_share_when_its_link_is_there() -> None:
    world = canary()
    world.backends["canary"] = ["c1"]
    world.links_at_once = False
    world.push()
    world.submit(range(1000))
    assert len(world.got("g1")) == 1000
    world.link("c1")
    world.submit(range(1000, 2000))
    assert world.got("c1")


@pytest.mark.parametrize("prospect", [*MAYBE, *GONE])
def test_keys_follow_their_owners_whatever_becomes_of_the_backend(prospect: Prospect) -> None:
    """The owner of a key may live, though nobody reaches it: nothing overtakes what it runs."""
    world = World({"b": ["b1"]}, owner=("b1", 1), prospects={"b": prospect})
    world.submit([1], ordering_key="k")
    world.drain("b1")
    world.submit([2], ordering_key="k")
    assert 2 not in world.outcomes
    world.complete("b1")
    world.backends["b"], world.owner = [], (None, 2)
    world.push()
    assert world.outcomes.get(2) == ("BACKEND_UNAVAILABLE" if prospect in GONE else None)


def test_a_key_that_is_handed_back_when_its_owner_is_gone_fails_with_the_others() -> None:
    world = World({"b": ["b1"]}, owner=("b1", 1), prospects={"b": Prospect.FAILING})
    world.submit([1, 2], ordering_key="k")
    world.backends["b"], world.owner = [], (None, 2)
    world.push()
    world.refuse("b1", 1, 2, reason=Reason.DRAINING, draining=True)
    assert world.outcomes == dict.fromkeys([1, 2], "BACKEND_UNAVAILABLE")


@pytest.mark.parametrize("prospect", Prospect)
def test_a_shadow_that_does_not_start_costs_nothing(prospect: Prospect) -> None:
    world = World({"a": ["a1"], "x": []}, slots=100, shadows={"x": 1.0}, prospects={"x": prospect})
    world.submit(range(50))
    assert world.at_replica("a1") == [*range(50)]
    world.complete("a1")
    assert Counter(world.outcomes.values()) == {OK: 50}
    assert world.scheduler.counters.shadows["x", "dropped"] == 50
    assert not world.scheduler.shadows_under_way


def test_reservations_go_the_same_way() -> None:
    world = canary()
    for _ in range(39):
        assert not reserve(world)
    assert world.replicas["g1"].own == 39
    world.backends = {"good": [], "canary": []}
    world.prospects = dict.fromkeys(world.backends, Prospect.NONE)
    world.push()
    assert reserve(world) == "BACKEND_UNAVAILABLE"
    assert reserve(world, Reserve(replica_id="nobody")) == "REPLICA_GONE"
    assert reserve(world, Reserve(excluded=frozenset({"g1"}))) == "BACKEND_UNAVAILABLE"


def test_reservations_that_wait_for_certain_replicas_move_too() -> None:
    world = canary("c1", slots=1)
    world.submit([100], by=caller())
    world.weights = {"canary": 1.0}
    world.push()
    world.submit([101])
    reserve(world, Reserve(excluded=frozenset({"x"})))
    assert world.queued == {"canary": 1}
    world.weights = WEIGHTS
    world.push()
    world.lose("c1")
    assert world.queued == {"good": 1}
    world.complete("g1")
    assert world.replicas["g1"].own == 1


def test_a_failing_lane_fails_as_one() -> None:
    world = World({"b": []})
    session = world.connect()
    world.submit([1], by=session, ordering_key="k", stop_generation=1)
    world.submit([2], by=session, ordering_key="k", stop_generation=1)
    world.prospects = {"b": Prospect.FAILING}
    world.push()
    assert world.outcomes[1] == "BACKEND_UNAVAILABLE"
    assert world.outcomes[2] in {"BACKEND_UNAVAILABLE", "PREDECESSOR_FAILED"}


def test_a_policy_of_a_backend_that_no_table_has_named_keeps_calls_waiting() -> None:
    world = World({"a": []}, weights={"a": 0.5, "later": 0.5}, prospects={"a": Prospect.FAILING})
    world.submit([1])
    assert not world.outcomes


def test_nothing_waits_for_a_backend_that_a_later_table_has_failing() -> None:
    world = World({"a": ["a1"], "b": []}, slots=1, weights={"b": 1.0})
    world.submit([1, 2, 3])
    world.weights = {"a": 0.5, "b": 0.5}
    world.step(TableReceived(routing_table(world, 2)))
    assert world.queued == {"a": 2}
