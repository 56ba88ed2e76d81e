"""What makes a rollout go back, and where it goes back to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller_service.core.desired.handler_code import HandlerCode, HandlerKey, template_of
from controller_service.core.desired.planning import RolledBackSettings, plan_file
from controller_service.core.desired.rollback import plan_undo_of_rollout
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord, restored
from controller_service.core.observed.launches import launch_failed
from controller_service.core.observed.replica_groups import group_replicas
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.observed.transitions import LOOPING_AFTER
from controller_service.core.reconciling.rollout_bounds import max_surge_of, max_unavailable_of
from controller_service.core.reconciling.rollouts import (
    MIN_CALLS,
    EndedCalls,
    RolloutPhase,
    RolloutStep,
    begun,
    follow,
    is_going_back,
    plan_moves,
    show_progress,
)
from controller_service.store.documents import ROLLOUT
from controller_service.store.forms import BadDocument
from slotmesh.spec.model import Backend, InvalidSpec, Mesh

OLD = Backend(name="v1", handler="a:Old", num_replicas=2)
NEW = replace(OLD, handler="a:New", num_replicas=3, max_queued_calls=7)
RECORD = RolloutRecord(backend="v1", template=template_of(NEW), good=OLD, since_s=50.0)
NOW = 1_000.0


def replica(name: str, backend: Backend = NEW, **facts: object) -> ObservedReplica:
    known = {"state": ReplicaState.READY, "started_at": NOW - 5.0, "ready_at": NOW - 4.0, "launched": True, **facts}
    return ObservedReplica(replica_id=name, backend="v1", template=template_of(backend), **known)  # type: ignore[arg-type]


def in_place_of(number: int, *, started_at: float = NOW - 5.0) -> Any:
    """Others have died in its place."""
    return {"restarts": number, "earlier_starts": (started_at,) * number}


STARTING: Any = {"state": ReplicaState.STARTING, "ready_at": None}
DEAD: Any = {
    "state": ReplicaState.FAILED,
    "ready_at": None,
    "gone": True,
    "reaped": True,
    "error": "T:\nValueError: no",
}


def look(*replicas: ObservedReplica, record: RolloutRecord = RECORD, **calls: EndedCalls) -> RolloutStep:
    others = [replica("old-1", OLD), replica("old-2", OLD)]
    return follow(record, NEW, 3, [*others, *replicas], NOW, time_of_day_s=60.0, ended_calls=calls)


def test_one_death_is_bad_luck_and_three_in_a_row_are_a_crash_loop() -> None:
    assert look(replica("a", **DEAD, **in_place_of(LOOPING_AFTER - 2))).goes_back_to is None
    step = look(replica("a", **DEAD, **in_place_of(LOOPING_AFTER - 1)))
    assert step.goes_back_to == OLD
    assert step.record == replace(
        RECORD,
        template=template_of(OLD),
        since_s=60.0,
        failed_at_s=60.0,
        why="3 replicas have died one after another, the newest so: ValueError: no",
    )
    asked = replica("a", **DEAD, **in_place_of(LOOPING_AFTER), is_drain_requested=True)
    assert look(asked).goes_back_to is None
    assert look(replica("a", **STARTING, **in_place_of(LOOPING_AFTER))).goes_back_to == OLD


def test_starts_that_never_happened_are_no_deaths_of_replicas() -> None:
    observed = Observed()
    for number in range(LOOPING_AFTER):
        observed = launch_failed(
            observed, f"a-{number}", "v1", "there is no file /p", now=NOW - 5.0 + number, template=template_of(NEW)
        ).observed
    step = look(*observed.replicas())
    assert step.record is not None
    assert step.record.why == "3 starts failed one after another, the newest so: there is no file /p"


def test_deaths_of_a_rollout_that_was_taken_back_do_not_count_when_the_same_is_rolled_out_again() -> None:
    began_at = NOW - 10.0  # 10 s after `since_s`
    before = in_place_of(LOOPING_AFTER, started_at=began_at - 5.0)
    assert look(replica("a", **{**DEAD, "started_at": began_at - 1.0}, **before)).goes_back_to is None
    assert look(replica("a", **STARTING, **before)).goes_back_to is None
    for own in range(LOOPING_AFTER + 1):
        starts = (*before["earlier_starts"], *(began_at for _ in range(own)))
        step = look(replica("a", **STARTING, restarts=len(starts), earlier_starts=starts))
        assert (step.goes_back_to is not None) is (own >= LOOPING_AFTER)


def test_what_was_ready_for_long_does_not_count_as_a_crash_loop() -> None:
    assert look(replica("a", **in_place_of(LOOPING_AFTER), ready_at=NOW - 60.0)).goes_back_to is None


def test_old_replicas_are_not_blamed_for_anything() -> None:
    old = replica("c", OLD, **DEAD, **in_place_of(9))
    assert look(old, replica("d", OLD, is_unhealthy=True)).goes_back_to is None


def test_one_that_does_not_get_ready_in_time_takes_it_back_unless_it_is_paused() -> None:
    late = replica("a", **STARTING, started_at=NOW - 600.0)
    assert "was not ready within 10m" in (look(late).record or RECORD).why
    no_image = replace(late, waits_for="ImagePullBackOff: digits:7")
    assert (look(no_image).record or RECORD).why.endswith("the progress_deadline: ImagePullBackOff: digits:7")
    assert look(replace(late, started_at=NOW - 599.5)).again_after_s == pytest.approx(0.5)
    assert look(late, record=replace(RECORD, is_paused=True)).goes_back_to is None


def test_health_checks_that_fail_take_it_back() -> None:
    step = look(replica("a", is_unhealthy=True, error="no"))
    assert step.record is not None
    assert step.record.why == "the health checks of a fail: no"


@pytest.mark.parametrize(
    ("calls", "before", "is_bad"),
    [
        (EndedCalls(MIN_CALLS - 1, MIN_CALLS - 1), EndedCalls(), False),
        (EndedCalls(MIN_CALLS, MIN_CALLS), EndedCalls(), True),
        (EndedCalls(100, 10), EndedCalls(100, 0), False),
        (EndedCalls(100, 11), EndedCalls(100, 0), True),
        (EndedCalls(100, 30), EndedCalls(100, 20), False),
    ],
)
def test_calls_that_fail_more_often_than_at_old_replicas_take_it_back(
    calls: EndedCalls, before: EndedCalls, is_bad: bool
) -> None:
    step = follow(
        RECORD,
        NEW,
        3,
        [replica("old-1", OLD), replica("a")],
        NOW,
        time_of_day_s=60.0,
        ended_calls={"a": calls, "old-1": before},
    )
    assert (step.goes_back_to is not None) is is_bad


@pytest.mark.parametrize(
    "earlier",
    [
        {"is_drain_requested": True, "state": ReplicaState.DRAINING},
        {"is_drain_requested": True, "is_unhealthy": True, "error": "no"},
        {"gone": True, "reaped": True},
    ],
)
def test_what_an_earlier_rollout_of_the_same_settings_has_left_does_not_count(earlier: dict[str, Any]) -> None:
    began_at = NOW - 10.0  # 10 s after `since_s`
    calls: Any = {"before": EndedCalls(100, 100), "a": EndedCalls(MIN_CALLS, 0)}
    of_before = replica("before", **{**earlier, "started_at": began_at - 1.0})
    assert look(of_before, replica("a"), **calls).goes_back_to is None
    shown = show_progress(RECORD, NEW, 3, [of_before], NOW, time_of_day_s=60.0, ended_calls=calls)
    assert (shown.phase, shown.trouble) == (RolloutPhase.PROGRESSING, "")
    again = show_progress(
        replace(RECORD, template="t"), NEW, 3, [of_before], NOW, time_of_day_s=60.0, ended_calls=calls
    )
    assert again.trouble == "", "it begins now"
    assert look(replica("before", **earlier), replica("a"), **calls).goes_back_to == OLD, "of this rollout"
    assert look(replica("before", started_at=began_at - 1.0), **calls).goes_back_to == OLD, "it serves again"


def test_progress_tells_ready_ones_from_those_that_are_so_for_long_enough() -> None:
    backend = replace(NEW, min_ready_s=10.0)
    young, old = replica("a", ready_at=NOW - 5.0), replica("b", ready_at=NOW - 15.0)
    starting = replica("c", state=ReplicaState.STARTING, ready_at=None)
    record = replace(RECORD, template=template_of(backend))
    shown = show_progress(record, backend, 3, [young, old, starting], NOW, time_of_day_s=60.0)
    assert (shown.phase, shown.current, shown.ready, shown.available) == (RolloutPhase.PROGRESSING, 3, 2, 1)


def test_what_is_complete_or_has_nothing_to_go_back_to_stays() -> None:
    dead = replica("a", **DEAD, **in_place_of(9))
    assert look(dead, record=replace(RECORD, is_complete=True)) == RolloutStep()
    assert look(dead, record=replace(RECORD, good=None)).goes_back_to is None
    shown = show_progress(replace(RECORD, good=None), NEW, 3, [dead], NOW, time_of_day_s=60.0)
    assert shown.phase is RolloutPhase.FAILING
    assert "ValueError: no" in shown.trouble


def test_only_what_starts_replicas_is_taken_back() -> None:
    assert restored(NEW, OLD) == replace(NEW, handler="a:Old")


def test_completion_remembers_the_settings_and_those_before() -> None:
    ready = [replica(name) for name in "abc"]
    step = follow(RECORD, NEW, 3, ready, NOW, time_of_day_s=60.0)
    assert step.record == replace(RECORD, is_complete=True, good=NEW, previous=OLD)
    young = [*ready[:2], replica("c", ready_at=NOW - 0.5)]
    assert follow(RECORD, NEW, 3, young, NOW, time_of_day_s=60.0).again_after_s == pytest.approx(0.5)


def test_undo_goes_back_from_a_rollout_under_way_and_from_one_that_is_complete() -> None:
    state = Desired().apply(ChangeSet(put_backends=(NEW,), put_rollouts=(replace(RECORD, is_paused=True),)))
    change = plan_undo_of_rollout(state, "v1").change
    assert change.put_backends == (restored(NEW, OLD),)
    assert not change.put_rollouts[0].is_paused
    done = state.apply(ChangeSet(put_rollouts=(replace(RECORD, is_complete=True, good=NEW, previous=OLD),)))
    assert plan_undo_of_rollout(done, "v1").change.put_backends == (restored(NEW, OLD),)
    first = state.apply(ChangeSet(put_rollouts=(replace(RECORD, is_complete=True, good=NEW),)))
    with pytest.raises(InvalidSpec, match="nothing that v1 could go back to"):
        plan_undo_of_rollout(first, "v1")


def test_undo_twice_brings_back_what_was_undone_whether_it_was_complete_or_not() -> None:
    oldest = replace(OLD, handler="a:Oldest")
    under_way = Desired().apply(ChangeSet(put_backends=(NEW,), put_rollouts=(replace(RECORD, previous=oldest),)))
    undone = under_way.apply(plan_undo_of_rollout(under_way, "v1").change)
    assert template_of(undone.backends["v1"]) == template_of(OLD)
    going_back = begun(undone.rollouts["v1"], undone.backends["v1"], 60.0)
    for record in (going_back, replace(going_back, is_complete=True)):
        state = undone.apply(ChangeSet(put_rollouts=(record,)))
        assert plan_undo_of_rollout(state, "v1").change.put_backends == (restored(undone.backends["v1"], NEW),)


@pytest.mark.parametrize("is_complete", [False, True])
def test_undo_is_refused_after_a_rollout_was_taken_back(*, is_complete: bool) -> None:
    """The settings before the failed ones are in force: those before these were not asked for."""
    record = look(replica("a", **DEAD, **in_place_of(LOOPING_AFTER))).record
    assert record is not None
    taken_back = replace(record, is_complete=is_complete, previous=replace(OLD, handler="a:Oldest"))
    state = Desired().apply(ChangeSet(put_backends=(restored(NEW, OLD),), put_rollouts=(taken_back,)))
    with pytest.raises(InvalidSpec, match="the newest rollout of v1 was rolled back already"):
        plan_undo_of_rollout(state, "v1")


@pytest.mark.parametrize(
    ("good", "leaving"),
    [
        ([], []),
        ([replica("o", OLD, **STARTING)], []),
        ([replica("o", OLD, suspect_since=NOW - 1.0)], []),
        ([replica("o", OLD, ready_at=NOW)], ["a", "b"]),
        ([replica("o", OLD), replica("p", OLD, **STARTING)], ["a", "b"]),
    ],
    ids=["none", "starting", "silent", "just ready", "one of two"],
)
def test_failed_replicas_leave_once_a_good_one_takes_calls(good: list[ObservedReplica], leaving: list[str]) -> None:
    present = restored(NEW, OLD)
    groups = group_replicas([*good, replica("a"), replica("b")], present, NOW)
    record = replace(RECORD, template=template_of(present), why="it failed")
    moves = plan_moves(groups, present, 3, NOW, record)
    assert sorted(it.replica_id for it in moves.leaving) == leaving


def test_present_settings_replace_failed_ones_until_the_roll_back_is_complete() -> None:
    record = look(replica("a", **DEAD, **in_place_of(LOOPING_AFTER))).record
    assert record is not None
    assert is_going_back(record, restored(NEW, OLD))
    assert not is_going_back(record, NEW)
    assert not is_going_back(replace(record, is_complete=True), restored(NEW, OLD))
    assert not is_going_back(RECORD, NEW)
    assert not is_going_back(None, NEW)


def test_a_deleted_backend_has_no_rollout_any_more() -> None:
    state = Desired().apply(ChangeSet(put_backends=(NEW,), put_rollouts=(RECORD,)))
    assert not state.apply(ChangeSet(delete_backends=("v1",))).rollouts


def test_what_is_stored_of_a_rollout_is_read_again_and_nothing_else() -> None:
    record = replace(RECORD, is_paused=True, previous=NEW, why="it died", failed_at_s=5.5)
    assert ROLLOUT.read("v1", ROLLOUT.write(record)) == record
    for wrong in ({**ROLLOUT.write(record), "later": 1}, {**ROLLOUT.write(record), "why": 1}):
        with pytest.raises(BadDocument, match="rollout of backend v1"):
            ROLLOUT.read("v1", wrong)


def test_bounds_that_nobody_has_set() -> None:
    assert [max_surge_of(NEW, wanted) for wanted in (0, 1, 4, 5, 100)] == [1, 1, 1, 2, 25]
    assert max_unavailable_of(NEW) == 0
    assert max_unavailable_of(replace(NEW, max_surge=0)) == 1


def test_a_file_that_names_no_version_gets_that_of_the_code_each_time() -> None:
    written = Mesh(backends=(OLD,))
    state, fills = Desired(), dict[HandlerKey, HandlerCode]()
    for version in ("file:1", "file:2"):
        fills = {"a:Old": HandlerCode(code=version[-1], version=version)}
        plan = plan_file(state, written, prune=False, launches=True, force=False, code=fills)
        state = state.apply(plan.change)
        assert (state.backends["v1"].version, state.backends["v1"].code) == (version, version[-1])
    assert plan_file(state, written, prune=False, launches=True, force=False, code=fills).changes_nothing
    assert plan_file(state, written, prune=False, launches=True, force=False).changes_nothing, "it was not found"
    said = Mesh(backends=(replace(OLD, version="7"),))
    plan = plan_file(state, said, prune=False, launches=True, force=False, code=fills)
    assert not plan.conflicts
    assert state.apply(plan.change).backends["v1"].version == "7"


def test_a_file_is_told_which_of_its_settings_were_taken_back_until_it_has_others() -> None:
    file = Mesh(backends=(replace(OLD, handler="a:Bad"),))
    state = Desired().apply(plan_file(Desired(), file, prune=False, launches=True, force=False).change)
    live = replace(OLD, version="file:1")
    back = RolloutRecord(backend="v1", template=template_of(live), is_complete=True, good=live, why="it died")
    state = state.apply(ChangeSet(put_backends=(live,), put_rollouts=(back,)))

    def rolled_back(desired: Desired, backend: Backend, *, force: bool = False) -> tuple[RolledBackSettings, ...]:
        return plan_file(desired, Mesh(backends=(backend,)), prune=False, launches=True, force=force).rolled_back

    (bad,) = file.backends
    assert rolled_back(state, bad) == (RolledBackSettings(backend="v1", reason="it died", fields=("handler",)),)
    assert rolled_back(state, OLD) == (), "it is in force"
    assert rolled_back(state, replace(OLD, num_replicas=9)) == (), "no process is started differently"
    assert rolled_back(state, replace(OLD, handler="a:Newer"), force=True) == (), "that is tried"
    wanted = state.apply(ChangeSet(put_rollouts=(replace(back, why=""),)))
    assert rolled_back(wanted, bad) == (), "an operator has wanted what is in force"
