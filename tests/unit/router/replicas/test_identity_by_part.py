"""What is one thing to the router, and what another: each time exactly one part of an identity differs."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults
from router_service.core.events import RosterAcknowledged, SessionReconciled
from router_service.core.limits.quotas import KEPT_S, CallQuotas, SessionQuota
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import FoundCalls
from router_service.core.routing_table import DeltaMismatch, RoutingTable, TableDelta, follow_delta
from router_service.core.runs import Caller
from router_service.shell.clients.result_frames import results_singly, singly
from slotmesh.errors import Failure, Reason
from slotmesh.spec.tenants import TenantLimits
from slotmesh.streams.chunks import joined
from tests.unit.router.parts import caller as plain_caller
from tests.unit.router.parts import replica
from tests.unit.router.world import World

OTHER_SESSION = "0ddba11" + "0" * 25


# -- batches to replicas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("in_session", [False, True])
def test_calls_share_a_batch_only_where_all_that_travels_once_is_the_same(seed: int, in_session: bool) -> None:
    """Calls of two endpoints, methods, timeouts and kinds leave in one frame, in any order."""
    world = World({"b": ["r"]}, slots=1_000, owner=("r", 1), endpoints=["e", "f"], lazy=True)
    clients = (
        [world.connect(), world.connect(session_id=OTHER_SESSION)] if in_session else [plain_caller(), plain_caller()]
    )
    kinds = list(
        product(
            ("e", "f"), ({}, {"timeout_s": 9.0}), ({}, {"ordering_key": "k"}), ({}, {"method": "m"}), (0, 1), range(2)
        )
    )
    Random(seed).shuffle(kinds)
    made: dict[int, tuple[str, dict[str, Any], int]] = {}
    for call_id, (endpoint, timeout, key, method, who, _) in enumerate(kinds, 1):
        fields: dict[str, Any] = {**timeout, **key, **method}
        made[call_id] = endpoint, fields, who
        world.submit([call_id], by=clients[who], to=endpoint, **fields)
    world.cut("r")
    assert sorted(world.at_replica("r")) == sorted(made)
    assert len(world.batches["r"]) < len(made), "some share one"
    for batch in world.batches["r"]:
        for at, payload in enumerate(batch.payloads):
            call_id = int(joined(payload))
            endpoint, fields, who = made[call_id]
            assert batch.endpoint == endpoint
            assert batch.options.method == fields.get("method", "")
            assert batch.lane(at)[0] == fields.get("ordering_key", "")
            assert batch.deadline == fields.get("timeout_s", float("inf"))
            assert batch.session is clients[who].session
            if in_session:
                assert batch.call_ids[at] == call_id
    keyed = [each for each in world.got("r") if "ordering_key" in made[each][1] and made[each][0] == "e"]
    assert keyed == sorted(keyed), "a key keeps its order"


# -- routing tables --------------------------------------------------------------------------------------------------


def delta(**parts: Any) -> TableDelta:
    given: dict[str, Any] = {
        "generation": "g",
        "base_revision": 7,
        "revision": 8,
        "endpoints": [],
        "removed_endpoints": [],
        "backends": [],
        "removed_backends": [],
        "router_addresses": None,
        "router_token_addresses": (),
        "roster_revision": 0,
        "departed_since": 0,
        "forgotten_departures": 0,
        "departed": (),
    }
    return TableDelta(**{**given, **parts})


@pytest.mark.parametrize(
    ("parts", "follows"),
    [
        ({}, True),
        ({"revision": 9}, True),
        ({"generation": "h"}, False),
        ({"base_revision": 6}, False),
        ({"base_revision": 8, "revision": 9}, False),
        ({"revision": 7}, False),
    ],
)
def test_a_delta_is_followed_from_its_generation_and_its_revision(parts: dict[str, Any], follows: bool) -> None:
    table = RoutingTable(generation="g", revision=7)
    if follows:
        assert follow_delta(table, delta(**parts)).revision == parts.get("revision", 8)
    else:
        with pytest.raises(DeltaMismatch):
            follow_delta(table, delta(**parts))


# -- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differs", ["nothing", "epoch before", "epoch after", "session", "replica"])
def test_an_answer_counts_for_the_session_the_epoch_and_the_replica_that_were_asked(differs: str) -> None:
    world = World({"b": ["r1", "r2", "r3"]}, slots=100)
    others = world.connect(2, (1, 1), session_id=OTHER_SESSION)
    client = world.connect(3, (1, 3))
    world.resend([1, 2, 3], by=client)
    assert client.session is not None
    assert others.session is not None
    session_id, epoch = client.session.session_id, client.session.epoch
    for name in ("r1", "r2"):
        world.reconcile(name, client)
    answer = {
        "nothing": ("r3", session_id, epoch),
        "epoch before": ("r3", session_id, epoch - 1),
        "epoch after": ("r3", session_id, epoch + 1),
        "session": ("r3", OTHER_SESSION, 2),
        "replica": ("r2", session_id, epoch),
    }[differs]
    world.step(SessionReconciled(world.replicas[answer[0]], answer[1], answer[2], FoundCalls()))
    assert bool(world.got("r1") + world.got("r2") + world.got("r3")) is (differs == "nothing")
    world.reconcile("r3", client)
    assert sorted(world.got("r1") + world.got("r2") + world.got("r3")) == [1, 2, 3]


@pytest.mark.parametrize(("generation", "newer", "joins"), [("g", 0, True), ("h", 0, False), ("g", -1, False)])
def test_a_roster_is_acknowledged_by_its_generation_and_its_revision(generation: str, newer: int, joins: bool) -> None:
    world = World({"b": ["r1"]}, slots=100)
    client = world.connect()
    for names in (("r2",), ("r3", "r4")):
        world.backends["b"] += names
        world.push()
    version = world.roster._replace(generation=generation, revision=world.roster.revision + newer)
    world.step(RosterAcknowledged(client, version))
    joined_now = [name for name in ("r2", "r3", "r4") if not world.replicas[name].is_joining]
    assert joined_now == (["r2", "r3", "r4"] if joins else [])


def test_a_client_that_knows_the_first_of_several_rosters_is_waited_for_no_longer_than_that_takes() -> None:
    """It lacks the newest one only: it goes on, and the replicas that it knows get calls."""
    world = World({"b": ["r1"]}, slots=1)
    client = world.connect()
    world.submit([1], by=client)
    rosters = []
    for at, name in ((0.0, "r2"), (0.1, "r3"), (0.2, "r4")):
        world.at(at)
        world.backends["b"].append(name)
        world.push()
        rosters.append(world.roster)
    world.step(RosterAcknowledged(client, rosters[0]))
    world.at(0.25)
    assert client.session is not None
    assert not client.session.is_suspended
    assert [world.replicas[name].is_joining for name in ("r2", "r3", "r4")] == [False, True, True]
    world.step(RosterAcknowledged(client, rosters[1]))
    world.at(0.5)
    assert not client.session.is_suspended
    assert [world.replicas[name].is_joining for name in ("r2", "r3", "r4")] == [False, False, True]
    world.at(0.75)
    assert client.session.is_suspended, "now it holds up those that it does not know"
    assert not world.replicas["r4"].is_joining


@pytest.mark.parametrize("reconnected", [False, True])
def test_a_session_is_counted_by_its_caller_and_its_id_until_its_own_absence_is_over(reconnected: bool) -> None:
    sessions = SessionQuota(3)
    for who, session in (("a", "s1"), ("a", "s2"), ("b", "s1")):
        assert sessions.opened(who, session, 0.0) is None
        sessions.ended(who, session, 1.0, in_order=False)
    if reconnected:
        assert sessions.opened("a", "s1", 2.0) is None
    assert sessions.quota.held == {"a": 2, "b": 1}
    assert sessions.opened("c", "s", 1.0 + KEPT_S) is None
    assert sessions.quota.held == ({"a": 1, "c": 1} if reconnected else {"c": 1})
    sessions.ended("a", "s1", 100.0, in_order=False)
    sessions.opened("c", "t", 100.0 + KEPT_S)
    assert sessions.quota.held == {"c": 2}


# -- tenants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "who", "tenant", "is_another"),
    [("e", "one", "a", False), ("f", "one", "a", True), ("e", "two", "a", True), ("e", "one", "b", True)],
)
def test_a_tenant_is_one_of_an_endpoint_and_of_a_caller(endpoint: str, who: str, tenant: str, is_another: bool) -> None:
    world = World({"b": ["r"]}, slots=100, endpoints=["e", "f"], tenants=TenantLimits(max_in_flight=1))
    quotas = CallQuotas()
    callers = {name: Caller(Window(calls=10**9, bytes=10**12), share=quotas.share_of(name)) for name in ("one", "two")}
    world.submit([1], by=callers["one"], tenant="a")
    world.submit([2], by=callers[who], to=endpoint, tenant=tenant)
    assert world.outcomes == ({} if is_another else {2: Reason.TENANT_LIMIT})


# -- deliveries that come apart --------------------------------------------------------------------------------------

IDS = [11, 12, 15, 19]
"""Of four calls that a replica has executed one after another, as runs 100 to 103."""
NAMED = RouterCallOptions(method="m")


def _results(at: RoutedReplica) -> DeliverResults:
    return DeliverResults(plain_caller(), IDS, [b"a", b"bb", b"c", b"d"], "text", at, 40, 100, 3, NAMED)


def test_each_call_of_a_delivery_keeps_its_own_run_and_result() -> None:
    at = replica()
    for cut in (singly, results_singly):
        parts = [each for each in cut(_results(at)) if isinstance(each, DeliverResults)]
        assert [(part.ids, part.first) for part in parts] == [([11], 100), ([12], 101), ([15], 102), ([19], 103)]
        assert [list(part.payloads) for part in parts] == [[b"a"], [b"bb"], [b"c"], [b"d"]]
        assert [part.size for part in parts] == [40, 0, 0, 0], "the window gets it back once"
        assert {(part.replica, part.links, part.content_type, part.options) for part in parts} == {
            (at, 3, "text", NAMED)
        }


@pytest.mark.parametrize(("first", "runs"), [(100, [100, 101, 102, 103]), (0, [0, 0, 0, 0])])
def test_each_call_of_a_failure_or_of_an_end_keeps_its_own_run(first: int, runs: list[int]) -> None:
    failure = Failure(reason=Reason.HANDLER_ERROR, message="no")
    for whole in (
        DeliverFailure(plain_caller(), IDS, failure, 40, replica(), first, 3, "e", "acme"),
        DeliverDone(plain_caller(), IDS, 40, replica(), first, 3),
    ):
        parts = [each for each in singly(whole) if isinstance(each, DeliverDone | DeliverFailure)]
        assert [part.first for part in parts] == runs
        assert [list(part.ids) for part in parts] == [[11], [12], [15], [19]]
        assert [part.size for part in parts] == [40, 0, 0, 0]


def test_two_callers_of_one_key_are_two_lanes_that_stop() -> None:
    world = World({"b": ["r"]}, owner=("r", 1), lazy=True)
    one, two = world.connect(), world.connect(session_id=OTHER_SESSION)
    fields: dict[str, Any] = {"ordering_key": "k", "stop_generation": 1}
    world.submit([1], by=one, **fields)
    world.submit([2], by=two, **fields)
    world.cut("r")
    world.submit([3, 4], by=one, **fields)
    world.submit([5, 6], by=two, **fields)
    world.submit([7], by=one, ordering_key="k", stop_generation=2)
    world.submit([8], by=one, ordering_key="j", stop_generation=1)
    world.fail("r", 1)
    assert world.outcomes == {1: "HANDLER_ERROR", 3: "PREDECESSOR_FAILED", 4: "PREDECESSOR_FAILED"}
    world.cut("r")
    world.complete("r")
    assert world.outcomes.keys() >= {2, 5, 6, 7, 8}
    assert world.reasons([2, 5, 6, 7, 8]) == {"ok"}
