"""Sessions that move: replicas are asked before anything that was sent before runs again."""

from __future__ import annotations

import pytest

from router_service.core.events import RunsCompleted
from router_service.core.features.session_resumption import REPORTS_WITHIN_S
from slotmesh.errors import Executed, Reason
from slotmesh.spec.model import BUILT_IN_BALANCERS
from tests.unit.router.moving_sessions import asked, pair
from tests.unit.router.world import DONE, OK, World
from tests.unit.router.world_callers import SESSION

OTHER = "0ddba11" + "0" * 25


def test_the_first_connection_asks_nobody() -> None:
    world = pair()
    client = world.connect()
    world.submit([1, 2], by=client)
    assert not world.asked
    assert sorted(world.got("r1") + world.got("r2")) == [1, 2]


def test_frames_say_whose_calls_they_carry() -> None:
    world = World({"b": ["r1"]}, slots=100, lazy=True)
    one, other = world.connect(), world.connect(session_id=OTHER)
    world.submit([1, 2], by=one)
    world.submit([3, 4], by=one)
    world.submit([5], by=other)
    world.submit([6])
    batches = world.cut("r1")
    assert [(batch.session and batch.session.session_id, list(batch.call_ids)) for batch in batches] == [
        (SESSION, [1, 2, 3, 4]),
        (OTHER, [5]),
        (None, []),
    ]


def test_ids_of_a_batch_ascend() -> None:
    world = World({"b": ["r1"]}, slots=100, lazy=True)
    client = world.connect()
    world.submit([5, 6], by=client)
    world.submit([3], by=client)  # it came back from elsewhere
    world.submit([7], by=client)
    assert [list(batch.call_ids) for batch in world.cut("r1")] == [[5, 6], [3, 7]]


def test_what_was_sent_before_waits_for_every_replica() -> None:
    world = pair()
    client = world.connect(2, (1, 6))
    assert asked(world) == ["r1", "r2"]
    world.resend(range(1, 7), by=client)
    world.reconcile("r1", client, running=[(2, 3)])
    assert not world.recovered("r1")
    world.reconcile("r2", client, kept=[(5, 5)], evicted=[(6, 6)])
    assert world.recovered("r1") == [2, 3]
    assert world.recovered("r2") == [5]
    assert sorted(world.got("r1") + world.got("r2")) == [1, 4]
    assert {payload for batch in world.batches["r1"] if batch.recovers for payload in batch.payloads} == {b""}
    assert world.outcomes == {6: Reason.RESULT_EVICTED}
    assert world.failures[6].executed is Executed.YES
    world.complete("r1")
    world.complete("r2")
    assert world.reasons(range(1, 6)) == {OK}


def test_what_comes_again_after_the_answers_is_settled_at_once() -> None:
    world = pair()
    client = world.connect(2, (1, 2))
    world.reconcile("r1", client, kept=[(1, 1)])
    world.reconcile("r2", client)
    world.resend([1, 2], by=client)
    assert world.recovered("r1") == [1]
    assert world.got("r1") + world.got("r2") == [2]


@pytest.mark.parametrize("balancer", BUILT_IN_BALANCERS)
def test_a_replica_that_is_full_of_recovered_calls_gets_no_others(balancer: str) -> None:
    world = World({"b": ["r1"]}, slots=4, settings={"balancer": balancer})
    client = world.connect(2, (1, 9))
    world.reconcile("r1", client, running=[(1, 9)])
    world.resend(range(1, 10), by=client)
    assert world.recovered("r1") == [*range(1, 10)]
    world.submit(range(10, 16), by=client)
    assert world.queued == {"b": 6}
    world.complete("r1")
    assert world.got("r1") == [10, 11, 12, 13]
    world.complete("r1")
    world.complete("r1")
    assert world.reasons(range(1, 16)) == {OK}


def test_a_kept_outcome_goes_before_one_that_is_gone() -> None:
    world = pair()
    client = world.connect(2, (1, 1))
    world.resend([1], by=client)
    world.reconcile("r1", client, kept=[(1, 1)])
    world.reconcile("r2", client, evicted=[(1, 1)])
    assert world.recovered("r1") == [1]


def test_new_calls_do_not_wait_but_behind_their_key() -> None:
    world = pair()
    client = world.connect(2, (1, 1))
    world.resend([1], by=client, ordering_key="k")
    world.submit([2], by=client)
    world.submit([3], by=client, ordering_key="k")
    world.submit([4], by=client, ordering_key="other")
    assert sorted(world.got("r1") + world.got("r2")) == [2, 4]
    world.reconcile("r1", client)
    world.reconcile("r2", client)
    assert [each for each in world.got("r1") if each in (1, 3)] == [1, 3]


def test_a_session_with_nothing_unanswered_asks_nobody() -> None:
    world = pair()
    client = world.connect(2)
    world.submit([1], by=client, ordering_key="k")
    assert not world.asked
    assert world.got("r1") == [1]


def test_replicas_that_are_not_linked_are_asked_when_they_are() -> None:
    world = World({"b": ["r1"]}, slots=100, links_at_once=False)
    client = world.connect(2, (1, 1))
    world.resend([1], by=client)
    assert not world.asked
    world.link("r1")
    assert asked(world) == ["r1"]
    world.reconcile("r1", client, kept=[(1, 1)])
    assert world.recovered("r1") == [1]


@pytest.mark.parametrize("how", ["lost", "late", "gone"])
def test_what_may_have_run_at_a_replica_that_does_not_answer_is_not_run_again(how: str) -> None:
    world = pair()
    client = world.connect(2, (1, 3))
    world.resend([1], by=client)
    world.resend([2], by=client, idempotent=True)
    world.resend([3], by=client)
    world.reconcile("r1", client, running=[(3, 3)])
    if how == "lost":
        world.lose("r2")
    elif how == "late":
        assert world.scheduler.next_deadline() == REPORTS_WITHIN_S
        world.at(REPORTS_WITHIN_S)
    else:
        world.backends["b"] = ["r1"]
        world.push()
    assert world.outcomes == {1: Reason.REPLICA_LOST}
    assert world.failures[1].executed is Executed.UNKNOWN
    assert "r2" in world.failures[1].message
    assert world.recovered("r1") == [3]
    again = [(name, batch.attempt) for name in ("r1", "r2") for batch in world.batches[name] if b"2" in batch.payloads]
    assert [attempt for _, attempt in again] == [1]


def test_a_router_without_a_table_asks_when_it_has_one() -> None:
    world = World({"b": []}, slots=100)
    fresh = World({"b": ["r1"]}, slots=100)
    fresh.scheduler = type(world.scheduler)(lambda: 0.5)
    client = fresh.connect(2, (1, 1))
    fresh.resend([1], by=client)
    assert not fresh.outcomes
    fresh.push()
    assert asked(fresh) == ["r1"]


def test_what_runs_at_a_former_owner_holds_its_key_up() -> None:
    world = pair()
    client = world.connect(2, (1, 2))
    world.resend([1, 2], by=client, ordering_key="k")
    world.submit([3], by=client, ordering_key="k")
    world.reconcile("r1", client)
    world.reconcile("r2", client, running=[(1, 1)])
    assert world.recovered("r2") == [1]
    assert world.got("r1") == []
    world.complete("r2", 1)
    assert world.got("r1") == [2, 3]


@pytest.mark.parametrize("is_sent", [True, False])
def test_what_is_lost_on_its_way_back_is_not_run_again(is_sent: bool) -> None:
    world = pair()
    client = world.connect(2, (1, 1))
    world.resend([1], by=client)
    world.lazy = not is_sent
    world.reconcile("r1", client, kept=[(1, 1)])
    world.reconcile("r2", client)
    world.lazy = False
    world.lose("r1")
    assert world.outcomes == {1: Reason.REPLICA_LOST}
    assert world.failures[1].executed is Executed.UNKNOWN
    assert not world.got("r2")


def test_a_connection_that_breaks_leaves_replicas_at_work() -> None:
    world = World({"b": ["r1"]}, slots=2, lazy=True)
    client = world.connect()
    world.submit([1, 2], by=client)
    world.cut("r1")
    world.submit([3], by=client)
    world.submit([4], by=client, ordering_key="k")
    world.disconnect(client)
    assert not world.cancelled["r1"]
    assert not client.runs
    world.lazy = False
    world.complete("r1")
    assert world.at_replica("r1") == []
    assert not world.outcomes
    world.submit([5, 6])
    assert world.at_replica("r1") == [5, 6], "their room is free again"


def test_what_a_replica_knows_of_a_call_that_was_not_waited_for_is_kept_until_the_failure_is_acknowledged() -> None:
    world = World({"b": ["r1"]}, slots=10)
    client = world.connect()
    world.submit([1, 2, 3], by=client)
    world.cancel((2, 2), by=client)
    assert world.cancelled["r1"] == [2]
    world.complete("r1")
    assert world.outcomes == {1: OK, 2: Reason.CANCELLED, 3: OK}
    (failed,) = world.failure_commands
    assert (failed.replica, failed.first, failed.links) == (world.replicas["r1"], 2, 0)


def test_what_a_replica_refuses_because_the_session_moved_on_is_not_tried_elsewhere() -> None:
    world = pair()
    client = world.connect()
    world.submit([1], by=client, ordering_key="k")
    world.submit([2], by=client)
    name = "r1" if 2 in world.at_replica("r1") else "r2"
    world.refuse("r1", 1, reason=Reason.SESSION_FENCED)
    world.refuse(name, 2, reason=Reason.SESSION_FENCED)
    assert world.outcomes == {1: Reason.SESSION_FENCED, 2: Reason.SESSION_FENCED}
    world.submit([3], ordering_key="k")
    assert 3 in world.at_replica("r1"), "the partition is as it was"


def test_time_goes_on_while_a_session_moves() -> None:
    world = pair()
    client = world.connect(2, (1, 2))
    world.resend([1], by=client, age=0.4, timeout_s=1.0)
    world.resend([2], by=client, age=1.5, timeout_s=1.0)
    world.at(0.1)
    assert world.outcomes == {2: Reason.DEADLINE_IN_QUEUE}
    assert world.failures[2].executed is Executed.UNKNOWN, "it may have run before"
    world.at(0.61)
    assert set(world.outcomes) == {1, 2}
    world.reconcile("r1", client, running=[(1, 1)])
    world.reconcile("r2", client)
    assert not world.recovered("r1")


def test_calls_that_want_no_reply_end_as_done() -> None:
    world = World({"b": ["r1"]}, slots=10)
    world.submit([1, 2, 3], no_reply=True)
    ids = world._take("r1", [1, 2])
    world.step(RunsCompleted(world.replicas["r1"], [], [], None, ids))
    world.lose("r1")
    assert world.outcomes == {1: DONE, 2: DONE, 3: DONE}


def test_what_may_have_run_at_a_replica_that_departed_is_not_run_again() -> None:
    world = World({"b": ["r1", "r2"]}, slots=100)
    before = world.roster
    world.backends["b"] = ["r1"]
    world.push()
    client = world.connect(2, (1, 3), rosters=[before])
    world.resend([1], by=client)
    world.resend([2], by=client, first_roster=before)
    world.resend([3], by=client, first_roster=before, idempotent=True)
    world.reconcile("r1", client)
    assert world.outcomes == {2: Reason.REPLICA_LOST}
    assert world.failures[2].executed is Executed.UNKNOWN
    assert "r2" in world.failures[2].message
    assert sorted(world.got("r1")) == [1, 3], "the first one was sent when it was known that r2 had departed"


def test_a_replica_that_has_forgotten_the_session_says_nothing_of_what_it_does_not_name() -> None:
    world = pair()
    client = world.connect(2, (1, 2))
    world.resend([1, 2], by=client)
    world.reconcile("r1", client, kept=[(1, 1)], forgotten=True)
    world.reconcile("r2", client)
    assert world.recovered("r1") == [1]
    assert world.outcomes == {2: Reason.REPLICA_LOST}
    assert world.failures[2].executed is Executed.UNKNOWN
