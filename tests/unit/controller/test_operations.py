"""When an operation is done: each state of routers, replicas, rollouts and shifts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.shifts import ShiftPhase, ShiftRecord
from controller_service.core.desired.state import ChangeSet, Desired, ReplicaOrder, RolloutRecord
from controller_service.core.observed.state import Observed, ObservedReplica, ObservedRouter, ReplicaState
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.operations import ON_HOLD, MeshFacts, find_operation
from controller_service.core.roster import DepartedIncarnation
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec

OLD = Backend(name="b", handler="app:Old", num_replicas=1)
NEW = replace(OLD, handler="app:New")
FIRST = Desired().apply(ChangeSet(put_backends=(OLD,)))
SECOND = FIRST.apply(ChangeSet(put_backends=(NEW,)))
REPLICA = ObservedReplica(
    replica_id="b-1",
    backend="b",
    incarnation="1",
    state=ReplicaState.READY,
    started_at=0.0,
    ready_at=0.0,
    launched=True,
    template=template_of(NEW),
)
COMPLETE = RolloutRecord(backend="b", template=template_of(NEW), is_complete=True, good=NEW, previous=OLD)
ROUTER = ObservedRouter(
    router_id="r", address="h:1", started_at=0.0, generation="g", revision=2, linked=frozenset({REPLICA.owner})
)
GONE = Incarnation("b-2", "9")
DRAINED = ReplicaOrder(owner=GONE, is_end=False, who="", time_s=0.0)
DONE = MeshFacts(
    desired=SECOND.apply(ChangeSet(put_rollouts=(COMPLETE,), put_orders=(DRAINED,))),
    observed=Observed().with_replica(REPLICA).with_router(ROUTER),
    generation="g",
    launches=True,
    now=100.0,
)


def with_router(**changes: object) -> MeshFacts:
    return replace(DONE, observed=DONE.observed.with_router(replace(ROUTER, **changes)))  # type: ignore[arg-type]


def with_replica(**changes: object) -> MeshFacts:
    return replace(DONE, observed=DONE.observed.with_replica(replace(REPLICA, **changes)))  # type: ignore[arg-type]


def with_record(**changes: object) -> MeshFacts:
    record = replace(COMPLETE, **changes)  # type: ignore[arg-type]
    return replace(DONE, desired=DONE.desired.apply(ChangeSet(put_rollouts=(record,))))


@pytest.mark.parametrize("name", ["revision/2", "rollout/b@2", f"drain/b-2@{GONE.incarnation}"])
def test_what_is_there_is_done_unless_members_may_still_attach(name: str) -> None:
    operation = find_operation(name, DONE)
    assert operation.done
    assert (operation.failure, operation.pending) == ("", ())
    starting = find_operation(name, replace(DONE, is_settled=False))
    assert not starting.done
    assert "may not be attached to this controller yet" in starting.pending[-1]


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (with_router(revision=1), "routers: 1 of 1 do not have the change yet: r (h:1)"),
        (with_router(generation="other"), "routers: 1 of 1 do not have the change yet: r (h:1)"),
    ],
)
def test_a_revision_waits_for_each_router(facts: MeshFacts, line: str) -> None:
    operation = find_operation("revision/2", facts)
    assert (operation.done, operation.completed, operation.total) == (False, 0, 1)
    assert operation.pending == (line,)


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (with_replica(state=ReplicaState.STARTING), "b: 0 of 1 replicas ready"),
        (with_replica(suspect_since=1.0), "b: 0 of 1 replicas ready"),
        (with_replica(is_drain_requested=True), "b: 0 of 1 replicas ready"),
        (
            with_replica(template=template_of(OLD), error="Traceback\nValueError: no"),
            "b: 0 of 1 new replicas ready",
        ),
        (
            with_replica(state=ReplicaState.FAILED, error="Traceback\nValueError: no"),
            "b: 0 of 1 replicas ready; b-1 failed: ValueError: no",
        ),
        (
            with_record(is_complete=False, good=None),
            "b: 1 of 1 new replicas have been ready for 1 s (min_ready)",
        ),
        (with_router(linked=frozenset()), "routers: r not linked to all replicas of b yet"),
        (with_router(linked=frozenset({Incarnation("b-1", "0")})), "routers: r not linked to all replicas of b yet"),
        (
            with_router(links_subset=True, unlinked=frozenset({REPLICA.owner})),
            "routers: r not linked to all replicas of b yet",
        ),
    ],
)
def test_a_rollout_waits_for_its_replicas_and_for_links_to_them(facts: MeshFacts, line: str) -> None:
    operation = find_operation("rollout/b@2", facts)
    assert not operation.done
    assert line in operation.pending


def test_a_router_that_links_to_a_part_needs_no_other_links() -> None:
    assert find_operation("rollout/b@2", with_router(linked=frozenset(), links_subset=True)).done


def test_old_replicas_have_to_drain_and_a_paused_rollout_says_how_it_goes_on() -> None:
    old = replace(REPLICA, replica_id="b-0", template=template_of(OLD), is_drain_requested=True)
    facts = with_record(is_complete=False, is_paused=True)
    facts = replace(facts, observed=facts.observed.with_replica(old))
    (line,) = find_operation("rollout/b@2", facts).pending
    assert line.startswith("b: 1 replicas ready, 1 that were there before drain; its rollout is paused: ")


@pytest.mark.parametrize(
    ("record", "failure"),
    [
        (RolloutRecord(backend="b", template=template_of(OLD), good=OLD, why="it crashes"), "rolled back: it crashes"),
        (COMPLETE, "replaced by revision 4"),
    ],
)
def test_a_rollout_whose_settings_are_not_there_any_more_has_failed(record: RolloutRecord, failure: str) -> None:
    back = DONE.desired.apply(ChangeSet(put_backends=(OLD,), put_rollouts=(record,)))
    operation = find_operation("rollout/b@2", replace(DONE, desired=back))
    assert (operation.done, operation.failure) == (True, failure)
    gone = DONE.desired.apply(ChangeSet(delete_backends=("b",)))
    assert find_operation("rollout/b@2", replace(DONE, desired=gone)).failure == "the backend was deleted at revision 4"


@pytest.mark.parametrize(("good", "is_failing"), [(None, True), (NEW, True), (OLD, False)])
def test_a_rollout_that_fails_has_failed_where_there_is_nothing_to_go_back_to(
    good: Backend | None, is_failing: bool
) -> None:
    facts = with_record(is_complete=False, good=good)
    sick = replace(REPLICA, is_unhealthy=True, error="ValueError: no")
    operation = find_operation("rollout/b@2", replace(facts, observed=facts.observed.with_replica(sick)))
    why = "fails, and there is nothing to go back to: the health checks of b-1 fail: ValueError: no"
    why += "; it stays until you correct it and apply it again, or `slotmesh delete backend/b`"
    assert (operation.done, operation.failure) == ((True, why) if is_failing else (False, ""))


def test_settings_of_revisions_that_the_history_has_dropped_are_not_known() -> None:
    cut = replace(DONE.desired, history=DONE.desired.history[-1:])
    facts = replace(DONE, desired=cut)
    assert find_operation("rollout/b@2", facts).done
    assert find_operation("rollout/b@1", facts).failure == "replaced by revision 2"
    with pytest.raises(InvalidSpec, match="revision 0 is not kept any more: the history begins after revision 1"):
        find_operation("rollout/b@0", facts)


SHIFT = ShiftRecord(endpoint="e", before={"b": 1.0}, target={"c": 1.0}, step=0.5, every_s=9.0, guards=(), min_calls=1)


@pytest.mark.parametrize(
    ("changes", "done", "failure", "pending"),
    [
        ({}, False, "", ("traffic of e is in step 1 of 2",)),
        (
            {"awaits": {"c": "t"}, "number": 0},
            False,
            "",
            ("traffic of e moves to c=1 later; it waits for the rollout of c",),
        ),
        ({"phase": ShiftPhase.COMPLETE}, True, "", ()),
        ({"phase": ShiftPhase.ROLLED_BACK, "why": "p99"}, True, "rolled back: p99", ()),
        ({"phase": ShiftPhase.STOPPED}, True, "stopped", ()),
    ],
)
def test_a_shift_is_done_when_it_has_ended(
    changes: dict[str, object], done: bool, failure: str, pending: tuple[str, ...]
) -> None:
    shift = replace(SHIFT, **changes)  # type: ignore[arg-type]
    desired = DONE.desired.apply(ChangeSet(put_endpoints=(Endpoint(name="e"),)))
    desired = desired.apply(ChangeSet(put_shifts=(shift,)))
    router = replace(ROUTER, revision=desired.configured_at)
    facts = replace(DONE, desired=desired, observed=DONE.observed.with_router(router))
    operation = find_operation("shift/e", facts)
    assert (operation.done, operation.failure, operation.pending) == (done, failure, pending)
    if done and not failure:
        behind = replace(facts, observed=DONE.observed)
        assert not find_operation("shift/e", behind).done, "the routers do not have its last step"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "traffic of e is in step 1 of 2; the next step waits: 3 of 5 calls"),
        ({"awaits": {"c": "t"}, "number": 0}, "traffic of e moves to c=1 later; it waits for 3 of 5 calls"),
    ],
)
def test_a_shift_reports_what_its_next_step_waits_for(changes: dict[str, object], line: str) -> None:
    shift = replace(SHIFT, **changes)  # type: ignore[arg-type]
    facts = replace(
        DONE, desired=DONE.desired.apply(ChangeSet(put_shifts=(shift,))), waits_for=lambda _: "3 of 5 calls"
    )
    assert find_operation("shift/e", facts).pending == (line,)


@pytest.mark.parametrize("name", ["revision/2", "rollout/b@2"])
def test_nothing_comes_to_its_end_while_the_controller_is_on_hold(name: str) -> None:
    assert find_operation(name, replace(DONE, is_on_hold=True)).failure == ON_HOLD


@pytest.mark.parametrize("name", ["drain/b-1@2", "drain/b-2@8", "drain/b-1@", "drain/x@9"])
def test_a_drain_of_a_process_that_nothing_is_known_of_is_refused_and_not_done(name: str) -> None:
    with pytest.raises(InvalidSpec, match="no such process is known"):
        find_operation(name, DONE)


def test_a_drain_is_known_by_its_order_by_the_roster_or_while_its_process_is_there() -> None:
    departed = DepartedIncarnation(owner=Incarnation("b-3", "7"), generation="g", revision=1, left_at=0.0)
    roster = replace(DONE.desired.roster, departed=(departed,))
    facts = replace(DONE, desired=replace(DONE.desired, roster=roster))
    assert find_operation("drain/b-3@7", facts).done
    assert not find_operation("drain/b-1@1", facts).done


@pytest.mark.parametrize("name", ["revision/3", "rollout/b@3"])
def test_a_revision_is_one_of_the_configuration_and_not_of_a_table(name: str) -> None:
    assert DONE.desired.revision > DONE.desired.configured_at == 2
    with pytest.raises(InvalidSpec, match="is to come: the configuration is at revision 2"):
        find_operation(name, DONE)


def test_a_drain_counts_the_calls_that_are_left() -> None:
    facts = replace(with_replica(state=ReplicaState.DRAINING), ongoing_calls=lambda _: 7)
    operation = find_operation("drain/b-1@1", facts)
    assert (operation.done, operation.ongoing_calls) == (False, 7)
    assert operation.pending == ("b-1 draining, with 7 calls left",)


def test_a_drain_of_a_launched_process_is_done_once_that_was_reaped() -> None:
    stopped: dict[str, Any] = {"state": ReplicaState.STOPPED, "gone": True, "pid": 12}
    operation = find_operation("drain/b-1@1", with_replica(**stopped))
    assert (operation.done, operation.pending) == (False, ("b-1 stopped; its process 12 still runs",))
    assert find_operation("drain/b-1@1", with_replica(**stopped, reaped=True)).done


@pytest.mark.parametrize("end", [{"gone": True}, {"state": ReplicaState.STOPPED}, {"state": ReplicaState.FAILED}])
def test_a_drain_of_a_process_that_was_started_elsewhere_is_done_by_its_report_or_a_proof(end: dict[str, Any]) -> None:
    assert not find_operation("drain/b-1@1", with_replica(launched=False)).done
    assert find_operation("drain/b-1@1", with_replica(launched=False, **end)).done
