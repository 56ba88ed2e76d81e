"""Sessions that move: what the router must know of replicas before it says that a call has not run."""

from __future__ import annotations

from router_service.core.features.session_resumption import REPORTS_WITHIN_S
from router_service.core.rosters import KnownTerm, RosterVersion
from slotmesh.errors import Executed, Reason
from tests.unit.router.moving_sessions import asked, pair
from tests.unit.router.world import World


def test_nothing_runs_again_before_the_table_covers_what_the_client_knows() -> None:
    world = pair()
    newer = RosterVersion("g", world.roster.revision + 1)
    client = world.connect(2, (1, 2), rosters=[newer])
    world.resend([1], by=client, first_roster=newer)
    world.resend([2], by=client, first_roster=newer, ordering_key="k")
    world.submit([3], by=client, ordering_key="k")
    world.submit([4], by=client)
    world.reconcile("r1", client)
    world.reconcile("r2", client)
    assert not world.outcomes
    assert world.got("r1") + world.got("r2") == [4]
    world.backends["b"] = ["r1", "r2", "r3"]
    world.push()
    assert asked(world) == ["r1", "r2", "r3"]
    world.acknowledge(client)
    world.reconcile("r3", client, running=[(1, 1)])
    assert world.recovered("r3") == [1]
    assert world.got("r1")[-2:] == [2, 3]


def test_without_a_table_that_covers_it_is_unknown_what_has_run() -> None:
    world = pair()
    client = world.connect(2, (1, 4), rosters=[RosterVersion("before", 7)])
    world.resend([1, 2], by=client)
    world.resend([3], by=client, idempotent=True)
    world.reconcile("r1", client, kept=[(2, 2)])
    world.reconcile("r2", client)
    assert world.recovered("r1") == [2], "where a call was found needs no proof"
    assert not world.outcomes
    assert world.scheduler.next_deadline() == REPORTS_WITHIN_S
    world.at(REPORTS_WITHIN_S)
    assert world.outcomes == {1: Reason.ROUTER_LOST}
    assert world.failures[1].executed is Executed.UNKNOWN
    assert 3 in world.got("r1") + world.got("r2")
    world.resend([4], by=client)
    assert world.outcomes[4] == Reason.ROUTER_LOST


def test_a_client_that_has_acknowledged_nothing_can_have_run_nothing() -> None:
    world = pair()
    client = world.connect(2, (1, 1), rosters=[])
    world.resend([1], by=client)
    world.reconcile("r1", client)
    world.reconcile("r2", client)
    assert world.got("r1") + world.got("r2") == [1]


def test_a_router_that_never_gets_a_table_says_that_it_does_not_know() -> None:
    fresh = World({"b": ["r1"]}, slots=100)
    known = fresh.roster
    fresh.scheduler = type(fresh.scheduler)(lambda: 0.5)
    client = fresh.connect(2, (1, 1), rosters=[known])
    fresh.resend([1], by=client)
    assert not fresh.outcomes
    fresh.at(REPORTS_WITHIN_S)
    assert fresh.outcomes == {1: Reason.ROUTER_LOST}
    assert fresh.failures[1].executed is Executed.UNKNOWN


def test_a_roster_that_the_client_did_not_name_must_be_covered_too() -> None:
    world = pair()
    client = world.connect(2, (1, 1))
    world.resend([1], by=client, first_roster=RosterVersion("long ago", 1))
    world.reconcile("r1", client)
    world.reconcile("r2", client)
    assert world.outcomes == {1: Reason.ROUTER_LOST}


def test_what_a_state_file_that_was_put_back_does_not_know_is_unknown() -> None:
    world = pair()
    roster = world.roster
    newer = RosterVersion(roster.generation, roster.revision, "of the newest state")
    world.roster = roster._replace(term_id="of the older state")
    world.terms = (KnownTerm(world.roster.term_id, 1),)
    world.push()
    client = world.connect(2, (1, 1), rosters=[newer])
    world.resend([1], by=client, first_roster=newer)
    world.reconcile("r1", client)
    world.reconcile("r2", client)
    assert not world.outcomes
    world.at(REPORTS_WITHIN_S)
    assert world.outcomes == {1: Reason.ROUTER_LOST}
    assert world.failures[1].executed is Executed.UNKNOWN


def test_a_client_may_acknowledge_a_roster_without_its_term() -> None:
    world = World({"b": ["r1"]}, slots=100)
    world.roster = world.roster._replace(term_id="t")
    world.push()
    client = world.connect(1, acknowledges=False)
    world.submit([1], by=client)
    assert not world.got("r1")
    world.acknowledge(client, world.roster._replace(term_id=""))
    assert world.got("r1") == [1]
