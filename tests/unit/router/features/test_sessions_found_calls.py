"""Sessions that move: calls that were found count for the calls of their key that are sent again before them."""

from __future__ import annotations

import pytest

from router_service.core.features import session_resumption
from router_service.core.features.session_resumption import REPORTS_WITHIN_S
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World


def moved() -> tuple[World, Caller]:
    """Calls 3 and 5 of key k were found; r2 has the key now."""
    world = World({"b": ["r1", "r2"]}, slots=100, owner=("r2", 1))
    client = world.connect(2, (1, 7), says_all=True)
    world.reconcile("r1", client, kept=[(3, 3)], running=[(5, 5)])
    world.reconcile("r2", client)
    return world, client


def test_what_was_lost_on_its_way_does_not_run_behind_later_calls_of_its_key() -> None:
    world, client = moved()
    world.resend([1, 2], by=client, ordering_key="k")
    world.resend([4], by=client, ordering_key="another")
    world.resend([3, 5, 6], by=client, ordering_key="k")
    world.resend([7], by=client)
    assert world.recovered("r1") == [3, 5]
    assert not world.got("r1") + world.got("r2")
    world.resent_all(client)
    assert world.outcomes == {1: Reason.REPLICA_LOST, 2: Reason.REPLICA_LOST}
    assert {world.failures[call].executed for call in (1, 2)} == {Executed.NO}
    world.complete("r1")
    assert sorted(world.got("r1") + world.got("r2")) == [4, 6, 7]


def test_an_idempotent_call_does_not_either() -> None:
    world, client = moved()
    world.resend([1], by=client, ordering_key="k", idempotent=True)
    world.resend([3], by=client, ordering_key="k", idempotent=True)
    world.resent_all(client)
    assert world.outcomes == {1: Reason.REPLICA_LOST}


def test_of_one_that_may_have_run_where_nobody_can_be_asked_that_is_unknown() -> None:
    world = World({"b": ["r1", "r2"]}, slots=100, owner=("r2", 1))
    client = world.connect(2, (1, 3), says_all=True)
    world.reconcile("r1", client, kept=[(3, 3)], forgotten=True)
    world.reconcile("r2", client)
    world.resend([1, 3], by=client, ordering_key="k")
    world.resent_all(client)
    assert world.failures[1].executed is Executed.UNKNOWN


def test_a_client_that_never_says_that_it_has_sent_all_is_not_waited_for_for_ever() -> None:
    world, client = moved()
    world.resend([1, 3], by=client, ordering_key="k")
    world.resend([7], by=client)
    world.at(REPORTS_WITHIN_S - 0.1)
    assert not world.got("r1") + world.got("r2")
    world.at(REPORTS_WITHIN_S)
    assert world.outcomes == {1: Reason.REPLICA_LOST}
    assert world.got("r1") + world.got("r2") == [7]


def test_what_was_found_counts_though_its_payload_is_under_way() -> None:
    world, client = moved()
    world.resend([1], by=client, ordering_key="k")
    world.announce_again(3, 100, by=client, ordering_key="k")
    world.resent_all(client)
    assert world.outcomes == {1: Reason.REPLICA_LOST}


def test_where_not_all_comes_again_in_time_what_was_found_may_be_of_any_key() -> None:
    world, client = moved()
    world.resend([1], by=client, ordering_key="k")
    world.resend([6], by=client, ordering_key="k")
    world.resend([2], by=client)
    world.at(REPORTS_WITHIN_S)
    assert world.outcomes == {1: Reason.REPLICA_LOST}
    assert sorted(world.got("r1") + world.got("r2")) == [2, 6]


def test_nor_is_it_known_of_more_runs_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_resumption, "MAX_RESENT", 1)
    world, client = moved()
    world.resend([1], by=client, ordering_key="k")
    world.resend([3], by=client, ordering_key="k")
    world.resent_all(client)
    assert world.outcomes == {1: Reason.REPLICA_LOST}


def test_calls_that_several_replicas_know_are_found() -> None:
    world = World({"b": ["r1", "r2"]}, slots=100, owner=("r2", 1))
    client = world.connect(2, (1, 7), says_all=True)
    world.reconcile("r1", client, kept=[(3, 6)])
    world.reconcile("r2", client, kept=[(4, 4)])
    world.resend([1], by=client, ordering_key="k")
    world.resend([6], by=client, ordering_key="k")
    world.resent_all(client)
    assert world.outcomes == {1: Reason.REPLICA_LOST}


def test_calls_of_other_keys_that_were_found_pass_nothing() -> None:
    world, client = moved()
    world.resend([1, 4], by=client, ordering_key="k")
    world.resend([3, 5], by=client, ordering_key="another")
    world.resent_all(client)
    assert not world.outcomes
    assert world.got("r2") == [1, 4]


def found_at_one_that_goes() -> tuple[World, Caller]:
    """Call 1 was found at r1, which the table names no longer while r2 has not reported."""
    world = World({"b": ["r1", "r2"]}, slots=100)
    client = world.connect(2, (1, 1))
    world.resend([1], by=client)
    world.reconcile("r1", client, running=[(1, 1)])
    world.backends["b"] = ["r2"]
    world.push()
    return world, client


def test_a_call_is_recovered_from_a_replica_that_has_left_the_table_meanwhile() -> None:
    world, client = found_at_one_that_goes()
    assert not world.closed
    world.reconcile("r2", client)
    assert world.recovered("r1") == [1]
    world.complete("r1")
    assert world.outcomes == {1: OK}
    assert world.closed == ["r1"]


def test_the_executions_of_one_that_has_ended_meanwhile_are_unknown() -> None:
    world, client = found_at_one_that_goes()
    world.lose("r1")
    world.reconcile("r2", client)
    assert world.outcomes == {1: Reason.REPLICA_LOST}
    assert world.failures[1].executed is Executed.UNKNOWN
    assert world.closed == ["r1"]


def test_the_link_to_one_that_has_left_the_table_closes_with_the_connection() -> None:
    world, client = found_at_one_that_goes()
    world.disconnect(client)
    assert world.closed == ["r1"]


def test_the_link_to_one_that_has_left_the_table_without_a_report_closes() -> None:
    world = World({"b": ["r1", "r2"]}, slots=100)
    world.connect(2, (1, 1))
    world.backends["b"] = ["r2"]
    world.push()
    assert world.closed == ["r1"]


@pytest.mark.parametrize("left", [["r1"], ["r1", "r3"]])
def test_a_replica_that_has_reported_before_it_left_does_not_have_what_it_did_not_name(left: list[str]) -> None:
    world = World({"b": ["r1", "r2", "r3"]}, slots=100)
    client = world.connect(2, (1, 1))
    world.resend([1], by=client)
    world.reconcile("r1", client)
    world.backends["b"] = [each for each in world.backends["b"] if each not in left]
    world.push()
    for each in world.backends["b"]:
        world.reconcile(each, client)
    if "r3" in left:
        assert "r3" in world.failures[1].message
        assert world.failures[1].executed is Executed.UNKNOWN
    else:
        assert world.got("r2") + world.got("r3") == [1]


def test_a_call_that_is_resent_when_its_replica_was_left_is_not_sent_there() -> None:
    world = World({"b": ["r1"]}, slots=100)
    client = world.connect(2, (1, 1))
    world.reconcile("r1", client, running=[(1, 1)])
    world.backends["b"] = []
    world.push()
    assert world.closed == ["r1"]
    world.resend([1], by=client)
    assert world.outcomes == {1: Reason.REPLICA_LOST}
    assert world.failures[1].executed is Executed.UNKNOWN
