"""The life of launched replicas: found again, given up, crash looping; single transitions, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventKind
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState, Restarts
from controller_service.core.observed.transitions import (
    FIRST_INTERVAL_S,
    LONGEST_INTERVAL_S,
    LOOPING_AFTER,
    QUICK_DEATH_S,
    AttachRefused,
    NamesakeLives,
)
from controller_service.core.reconciling.backends import (
    START_TIMEOUT_S,
    Action,
    BackendOutcome,
    DrainReplica,
    KillReplica,
    StartReplicas,
    StartRoom,
    reconcile_backend,
)
from slotmesh.spec.model import Backend

V1 = Backend(name="v1", handler="app:One", num_replicas=1)
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
GIVE_UP_AFTER_S = 7.0


def of(observed: Observed, replica_id: str = "a") -> ObservedReplica:
    found = observed.replica(replica_id)
    assert found is not None
    return found


def launched(observed: Observed, replica_id: str = "a", *, now: float = 0.0, process: str = "") -> Observed:
    template = template_of(V1)
    return launches.launched(observed, replica_id, "v1", template=template, pid=1, now=now, process=process).observed


def found(observed: Observed, replica_id: str = "a", *, process: str = "p", now: float = 0.0) -> Observed:
    template = template_of(V1)
    return launches.launched(
        observed, replica_id, "v1", template=template, pid=1, now=now, process=process, was_found=True
    ).observed


def ready(observed: Observed, replica_id: str = "a", *, now: float, **hello: object) -> Observed:
    said = Hello(replica_id=replica_id, incarnation="1", backend="v1", **hello)  # type: ignore[arg-type]
    observed = transitions.attached(observed, said, now=now).observed
    return transitions.reported(observed, replica_id, "1", READY, now=now).observed


def look(observed: Observed, now: float, *, backend: Backend | None = V1, launches: bool = True) -> BackendOutcome:
    desired = Desired() if backend is None else Desired().apply(ChangeSet(put_backends=(backend,)))
    return reconcile_backend(
        "v1", desired, observed, now, owners=(), launches=launches, time_of_day_s=now, give_up_after_s=GIVE_UP_AFTER_S
    )


def of_kind(outcome: BackendOutcome, kind: type[Action]) -> list[Action]:
    return [action for action in outcome.actions if isinstance(action, kind)]


# -- many at a time --------------------------------------------------------------------------------------------------


def test_of_many_only_some_start_at_a_time_and_the_next_when_one_attached_waits_or_ended() -> None:
    desired = Desired().apply(ChangeSet(put_backends=(replace(V1, num_replicas=5_000),)))

    def started(observed: Observed, most_starting: int | None = 3) -> list[int]:
        outcome = reconcile_backend(
            "v1",
            desired,
            observed,
            60.0,
            owners=(),
            launches=True,
            time_of_day_s=60.0,
            room=StartRoom(None, most_starting),
        )
        return [action.count for action in outcome.actions if isinstance(action, StartReplicas)]

    observed = Observed()
    assert (started(observed), started(observed, None)) == ([3], [5_000])
    for replica_id in "abc":
        observed = launched(observed, replica_id)
    assert started(observed) == []
    observed = ready(observed, "a", now=1.0)
    assert started(observed) == [4], "with those that run already"
    observed = launches.waits(observed, "b", "for a device", now=2.0).observed
    assert started(observed) == [5]
    observed = launches.exited(observed, "c", "was killed by SIGKILL", failed=True, now=3.0).observed
    assert started(observed) == [5], "three start beside a and b"


# -- found again -------------------------------------------------------------------------------------------------


def test_one_that_was_found_running_is_not_started_again() -> None:
    observed = found(Observed())
    assert look(observed, 1.0).actions == ()
    observed = ready(observed, now=2.0, has_served=True, generation="before", newest_epoch=7, process="p")
    record = of(observed)
    assert (record.launched, record.incarnation, record.must_fence_through) == (True, "1", 7)
    assert record.served_under == "before"
    assert look(observed, 3.0).actions == ()


def test_one_that_was_started_with_other_settings_is_replaced_new_first() -> None:
    observed = ready(found(Observed()), now=1.0, process="p")
    changed = Backend(name="v1", handler="app:Two", num_replicas=1)
    assert look(observed, 2.0, backend=changed).actions == (StartReplicas(changed, 1),)


def test_one_whose_backend_nobody_has_named_yet_is_left_alone() -> None:
    observed = ready(found(Observed()), now=1.0, process="p")
    assert look(observed, 2.0, backend=None).actions == ()
    drained = transitions.drain_requested(observed, "a", "an operator asked for it").observed
    assert of_kind(look(drained, 2.0, backend=None), DrainReplica), "unless an operator drains it"
    assert of_kind(look(observed, 2.0, backend=None, launches=False), DrainReplica), "or the controller ends"


def test_another_process_cannot_take_the_place_of_one_that_was_found() -> None:
    hello = Hello(replica_id="a", incarnation="1", backend="v1", process="another")
    with pytest.raises(NamesakeLives):
        transitions.attached(found(Observed()), hello, now=1.0)


def test_one_that_a_table_has_named_already_is_the_launchers_from_then_on() -> None:
    hello = Hello(replica_id="a", incarnation="1", backend="v1", process="p")
    observed = found(transitions.attached(Observed(), hello, now=0.0).observed, now=1.0)
    assert (of(observed).launched, of(observed).incarnation) == (True, "1")
    same = found(observed, now=2.0)
    assert same is observed


def test_one_that_does_not_come_back_is_given_up_after_a_long_time() -> None:
    observed = found(Observed())
    assert look(observed, START_TIMEOUT_S - 1.0) == BackendOutcome(retry_after_s=1.0)
    assert of_kind(look(observed, START_TIMEOUT_S), KillReplica)


# -- given up ----------------------------------------------------------------------------------------------------


def silent(observed: Observed, *, now: float) -> Observed:
    return transitions.fell_silent(observed, "a", now=now).observed


def test_a_silent_one_is_killed_replaced_at_once_and_gone_only_when_it_was_reaped() -> None:
    observed = silent(ready(launched(Observed()), now=1.0), now=100.0)
    assert look(observed, 106.0) == BackendOutcome(retry_after_s=1.0)
    (kill,) = look(observed, 107.0).actions
    assert isinstance(kill, KillReplica)
    transition = launches.given_up(observed, "a", kill.message, now=107.0)
    assert [it.kind for it in transition.notices] == [EventKind.REPLICA_DEAD]
    observed = transition.observed
    assert not of(observed).gone, "it may start calls until it was reaped"
    assert not observed.is_dead(of(observed).owner)
    assert look(observed, 107.0).actions == (StartReplicas(V1, 1),)
    observed = launched(observed, "b", now=107.0)
    assert (of(observed, "b").restarts, of(observed, "b").last_exit) == (1, kill.message)
    assert look(observed, 108.0).actions == ()
    restarts = observed.restarts_of("v1", template_of(V1))
    observed = launches.exited(observed, "a", "was killed by SIGKILL", failed=True, now=109.0).observed
    assert observed.is_dead(of(observed).owner)
    assert observed.restarts_of("v1", template_of(V1)) == restarts, "one death"
    assert launched(observed, "c", now=110.0).replica("c").restarts == 0, "and one place"  # type: ignore[union-attr]


def test_one_that_reports_again_in_time_stays() -> None:
    observed = silent(ready(launched(Observed()), now=1.0), now=100.0)
    observed = transitions.reported(observed, "a", "1", READY, now=106.9).observed
    assert look(observed, 200.0).actions == ()


def test_one_that_drains_and_hangs_is_killed_and_leaves_no_place() -> None:
    observed = silent(ready(launched(Observed()), now=1.0), now=100.0)
    observed = transitions.drain_requested(observed, "a", "scale down").observed
    assert of_kind(look(observed, 107.0), KillReplica)
    observed = launches.given_up(observed, "a", "silent", now=107.0).observed
    assert observed.unreplaced == ()


def test_one_that_somebody_else_started_is_never_killed() -> None:
    observed = silent(ready(Observed(), now=1.0), now=100.0)
    for launching in (True, False):
        assert not of_kind(look(observed, 10_000.0, launches=launching), KillReplica)


def test_one_that_was_given_up_does_not_come_back_by_a_late_report() -> None:
    observed = silent(ready(launched(Observed()), now=1.0), now=100.0)
    observed = launches.given_up(observed, "a", "silent", now=107.0).observed
    observed = transitions.reported(observed, "a", "1", READY, now=107.1).observed
    assert not of(observed).takes_calls
    observed = launches.exited(observed, "a", "was killed by SIGKILL", failed=True, now=108.0).observed
    with pytest.raises(AttachRefused):
        transitions.attached(observed, Hello(replica_id="a", incarnation="1", backend="v1"), now=109.0)


# -- crash loops -------------------------------------------------------------------------------------------------


def test_a_crash_loop_is_slowed_recognised_and_told_with_its_last_words() -> None:
    observed, told = Observed(), []
    now = 0.0
    waits = []
    for number in range(8):
        name = f"r-{number}"
        observed = launched(observed, name, now=now)
        assert of(observed, name).restarts == number
        transition = launches.exited(
            observed, name, "exited with status 1", failed=True, now=now + 1.0, last_output="ValueError: no model"
        )
        observed = transition.observed
        assert of(observed, name).last_output == "ValueError: no model"
        told.append([it.message for it in transition.notices if it.kind is EventKind.BACKEND_CRASH_LOOPING])
        waits.append(observed.restarts_of("v1", template_of(V1)).not_before - (now + 1.0))
        now = observed.restarts_of("v1", template_of(V1)).not_before
    assert waits == [min(LONGEST_INTERVAL_S, FIRST_INTERVAL_S * 2**number) for number in range(8)]
    assert [bool(each) for each in told] == [number + 1 >= LOOPING_AFTER for number in range(8)]
    words = "3 times in a row its replicas have ended soon after their start, the last one so: exited with status 1"
    assert told[2] == [f"{words}; the next start is in 2.0 s"]
    last = launched(observed, "z", now=now)
    assert (of(last, "z").restarts, of(last, "z").last_output) == (8, "ValueError: no model")


def test_replicas_that_somebody_kills_are_soon_replaced_however_often() -> None:
    observed, now = Observed(), 0.0
    for number in range(40):
        name = f"r-{number}"
        observed = ready(launched(observed, name, now=now), name, now=now)
        transition = launches.exited(
            observed, name, "was killed by SIGKILL", failed=True, now=now + 1.0, was_killed=True
        )
        observed = transition.observed
        assert observed.restarts_of("v1", template_of(V1)).not_before <= now + 1.0 + FIRST_INTERVAL_S
        assert not [it for it in transition.notices if it.kind is EventKind.BACKEND_CRASH_LOOPING]
        now += 2.0


def test_one_that_is_killed_before_it_was_ready_is_one_of_a_crash_loop() -> None:
    """The kernel kills for want of memory, too."""
    observed, now = Observed(), 0.0
    for number in range(LOOPING_AFTER):
        observed = launched(observed, f"r-{number}", now=now)
        observed = launches.exited(
            observed, f"r-{number}", "was killed by SIGKILL", failed=True, now=now + 1.0, was_killed=True
        ).observed
        now += 100.0
    assert observed.restarts_of("v1", template_of(V1)).streak == LOOPING_AFTER


def test_a_long_life_ends_a_crash_loop() -> None:
    observed = launched(Observed(), "a", now=0.0)
    observed = launches.exited(observed, "a", "exited with status 1", failed=True, now=1.0).observed
    observed = ready(launched(observed, "b", now=2.0), "b", now=2.0)
    observed = launches.exited(observed, "b", "was killed by SIGSEGV", failed=True, now=2.0 + QUICK_DEATH_S).observed
    assert observed.restarts_of("v1", template_of(V1)) == Restarts()


def test_how_a_process_has_ended_stands_beside_its_own_reason_also_for_the_one_in_its_place() -> None:
    observed = ready(launched(Observed()), now=1.0)
    report = ObservedReport(state=ReplicaState.DRAINING, end_reason="SIGTERM")
    observed = transitions.reported(observed, "a", of(observed).incarnation, report, now=50.0).observed
    transition = launches.exited(observed, "a", "exited with status 0", failed=False, now=51.0)
    words = "exited with status 0; its own reason: SIGTERM"
    assert [it.message for it in transition.notices if it.kind is EventKind.REPLICA_EXITED] == [
        f"v1: process {of(observed).pid} {words}"
    ]
    assert of(transition.observed).last_exit == words
    assert of(launched(transition.observed, "b", now=52.0), "b").last_exit == words


def test_a_reason_that_is_read_after_the_process_was_reaped_is_shown_once() -> None:
    observed = ready(launched(Observed()), now=1.0)
    observed = launches.exited(observed, "a", "exited with status 0", failed=False, now=51.0).observed
    report = ObservedReport(state=ReplicaState.STOPPED, end_reason="SIGTERM")
    transition = transitions.reported(observed, "a", of(observed).incarnation, report, now=51.5)
    assert [(it.kind, it.message) for it in transition.notices] == [
        (EventKind.REPLICA_STOPPED, "v1: its last report; its own reason: SIGTERM")
    ]
    observed = transition.observed
    assert of(observed).end_reason == "SIGTERM"
    again = transitions.reported(observed, "a", of(observed).incarnation, report, now=51.6)
    assert again.observed is observed
    assert not again.notices
