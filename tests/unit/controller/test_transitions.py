"""Rules about the life of members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.replicas import EXITS_KEPT
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.observed.transitions import AttachRefused, NamesakeLives
from controller_service.core.partition_owners import Incarnation

A = Hello(replica_id="a", incarnation="1" * 32, backend="v1", pid=7)
READY = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=4)


def attached(hello: Hello = A, observed: Observed | None = None) -> Observed:
    return transitions.attached(observed or Observed(), hello, now=1.0).observed


def reported(observed: Observed, report: ObservedReport, *, now: float = 2.0, hello: Hello = A) -> Observed:
    return transitions.reported(observed, hello.replica_id, hello.incarnation, report, now=now).observed


def the_replica(observed: Observed, replica_id: str = "a") -> ObservedReplica:
    replica = observed.replica(replica_id)
    assert replica is not None
    return replica


def launched(observed: Observed | None = None, *, now: float = 0.0) -> Observed:
    return launches.launched(observed or Observed(), "a", "v1", template="t", pid=9, now=now).observed


def test_a_report_without_news_changes_nothing_at_all() -> None:
    observed = reported(attached(), READY)
    assert reported(observed, READY, now=99.0) is observed


def test_silence_is_not_death() -> None:
    observed = transitions.fell_silent(reported(attached(), READY), "a", now=5.0).observed
    replica = the_replica(observed)
    assert (replica.shown_state, replica.gone, replica.takes_calls) == (ReplicaState.SUSPECT, False, True)
    assert not observed.is_dead(Incarnation("a", A.incarnation))
    assert the_replica(reported(observed, READY)).shown_state is ReplicaState.READY


def test_stopping_is_an_end_from_which_nobody_returns() -> None:
    observed = reported(attached(), ObservedReport(state=ReplicaState.STOPPED))
    assert observed.is_dead(Incarnation("a", A.incarnation))
    assert reported(observed, READY) is observed
    with pytest.raises(AttachRefused, match="has ended"):
        attached(A, observed)


def test_an_incarnation_that_was_replaced_is_dead_and_stays_out() -> None:
    newer = replace(A, incarnation="2" * 32)
    observed = attached(newer, reported(attached(), READY))
    assert observed.is_dead(Incarnation("a", A.incarnation))
    assert not observed.is_dead(Incarnation("a", newer.incarnation))
    assert reported(observed, ObservedReport(state=ReplicaState.STOPPED)) is observed
    with pytest.raises(AttachRefused, match="was replaced"):
        attached(A, observed)


def test_one_that_was_never_heard_of_is_not_dead() -> None:
    assert not Observed().is_dead(Incarnation("a", A.incarnation))
    assert not launched().is_dead(Incarnation("a", A.incarnation))


def test_a_launched_replica_that_lives_keeps_its_place() -> None:
    observed = attached(A, launched())
    with pytest.raises(NamesakeLives, match="which this controller launched"):
        attached(replace(A, incarnation="2" * 32), observed)
    assert the_replica(attached(A, observed)).launched
    with pytest.raises(NamesakeLives, match="launched for backend v1"):
        attached(replace(A, backend="v2"), launched())


def test_a_drained_replica_is_never_ready_again() -> None:
    observed = transitions.drain_requested(reported(attached(), READY), "a", "why").observed
    assert the_replica(observed).state is ReplicaState.DRAINING
    after = the_replica(reported(observed, replace(READY, max_ongoing=9)))
    assert (after.state, after.takes_calls, after.max_ongoing) == (ReplicaState.DRAINING, False, 9)


def test_a_warning_is_shown_for_as_long_as_it_is_reported() -> None:
    observed = reported(attached(), replace(READY, warning="block blocked the event loop"))
    record = the_replica(observed)
    assert (record.warning, record.state, record.error) == ("block blocked the event loop", ReplicaState.READY, "")
    assert the_replica(reported(observed, READY)).warning == ""


def test_last_words_are_read_after_the_end_was_seen() -> None:
    observed = launches.exited(launched(), "a", "exited with status 1", failed=True, now=1.0).observed
    assert (the_replica(observed).state, the_replica(observed).error) == (ReplicaState.FAILED, "exited with status 1")
    observed = reported(attached(A, observed), ObservedReport(state=ReplicaState.FAILED, error="Traceback"))
    assert (the_replica(observed).error, the_replica(observed).gone) == ("Traceback", True)


def starts_after(observed: Observed) -> float:
    return observed.restarts_of("v1", "t").not_before


def test_intervals_grow_from_half_a_second_to_thirty_and_fall_after_a_long_life() -> None:
    observed, now, intervals = Observed(), 100.0, []
    for _ in range(9):
        observed = launched(observed, now=now)
        observed = launches.exited(observed, "a", "died", failed=True, now=now).observed
        intervals.append(starts_after(observed) - now)
        now = starts_after(observed)
    assert intervals == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]

    observed = reported(attached(A, launched(observed, now=now)), READY, now=now)
    observed = launches.exited(observed, "a", "died", failed=True, now=now + 10.0).observed
    assert not observed.restarts


def test_deaths_of_one_wave_count_once() -> None:
    observed = Observed()
    for number in range(4):
        observed = launches.launched(observed, f"r{number}", "v1", template="t", pid=1, now=0.0).observed
    for number in range(4):
        observed = launches.exited(observed, f"r{number}", "died", failed=True, now=1.0 + number).observed
    assert observed.restarts_of("v1", "t").streak == 1
    assert starts_after(observed) == 1.5


def test_a_failure_counts_when_it_is_reported_and_not_again_when_the_process_ends() -> None:
    observed = attached(A, launched(now=0.0))
    observed = reported(observed, ObservedReport(state=ReplicaState.FAILED, error="no"), now=1.0)
    counted = observed.restarts_of("v1", "t")
    assert (counted.streak, counted.not_before) == (1, 1.5)
    observed = launches.exited(observed, "a", "exited with status 1", failed=True, now=1.4).observed
    assert observed.restarts_of("v1", "t") == counted

    # A life is as long as it said, not as long as its process took to end.
    observed = reported(attached(A, launched(now=0.0)), READY, now=0.0)
    observed = reported(observed, ObservedReport(state=ReplicaState.STOPPED), now=9.9)
    observed = launches.exited(observed, "a", "exited with status 0", failed=False, now=10.1).observed
    assert observed.restarts_of("v1", "t").streak == 1


def test_what_was_asked_to_end_does_not_count() -> None:
    observed = transitions.drain_requested(launched(), "a", "why").observed
    observed = launches.exited(observed, "a", "was killed by SIGTERM", failed=True, now=1.0).observed
    assert not observed.restarts
    assert the_replica(observed).state is ReplicaState.STOPPED
    assert not the_replica(observed).error


def start(observed: Observed, replica_id: str, template: str = "t") -> Observed:
    return launches.launched(observed, replica_id, "v1", template=template, pid=9, now=0.0).observed


def end(observed: Observed, replica_id: str, how: str) -> Observed:
    return launches.exited(observed, replica_id, how, failed=True, now=1.0).observed


def history(observed: Observed, replica_id: str) -> tuple[int, str]:
    replica = the_replica(observed, replica_id)
    return replica.restarts, replica.last_exit


def test_who_is_started_in_place_of_another_counts_on_and_knows_how_that_one_ended() -> None:
    observed = end(start(Observed(), "a"), "a", "was killed by SIGKILL")
    assert history(observed, "a") == (0, "was killed by SIGKILL")
    observed = start(observed.without_replica("a"), "b")
    assert history(observed, "b") == (1, "was killed by SIGKILL")
    observed = launches.launch_failed(observed, "c", "v1", "no such file", now=2.0, template="t").observed
    assert history(observed, "c") == (0, "no such file"), "nobody's place was free"
    observed = start(end(observed, "b", "exited with status 1"), "d")
    assert history(observed, "d") == (1, "no such file"), "the oldest first"
    assert history(start(observed, "e"), "e") == (2, "exited with status 1")


def test_who_was_told_to_end_leaves_no_place_and_a_new_configuration_counts_anew() -> None:
    observed = transitions.drain_requested(start(Observed(), "a"), "a", "enough").observed
    observed = end(observed, "a", "exited with status 0")
    assert history(observed, "a") == (0, "exited with status 0")
    assert history(start(observed, "b"), "b") == (0, "")
    observed = end(start(observed, "c"), "c", "was killed by SIGSEGV")
    assert history(start(observed, "d", template="another"), "d") == (0, "")


def test_places_are_bounded() -> None:
    observed = Observed()
    for number in range(EXITS_KEPT + 10):
        observed = end(start(observed, str(number), template=str(number)), str(number), "gone")
    assert len(observed.unreplaced) == EXITS_KEPT


def test_an_incarnation_that_replaces_another_counts_on() -> None:
    newer = replace(A, incarnation="2" * 32, version="9.9")
    replica = the_replica(attached(newer, reported(attached(), READY)))
    assert (replica.restarts, replica.version) == (1, "9.9")


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ("SIGTERM", "ordered by the controller: 1 should run"),
        ("ordered by the controller: 1 should run", "ordered by the controller: 1 should run"),
        ("its health checks failed", "its health checks failed"),
    ],
)
@pytest.mark.parametrize("state", [ReplicaState.DRAINING, ReplicaState.STOPPED])
def test_the_signal_of_its_launcher_hides_no_order_of_the_controller(
    reports: str, reason: str, state: ReplicaState
) -> None:
    ready = reported(attached(A, launched()), READY)
    ordered = transitions.drain_requested(ready, "a", "1 should run").observed
    assert the_replica(reported(ordered, ObservedReport(state=state, end_reason=reports))).end_reason == reason


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_signal_of_another_process_stays_a_signal(*, is_ordered: bool) -> None:
    observed = reported(attached() if is_ordered else attached(A, launched()), READY)
    if is_ordered:  # it was started elsewhere: this controller sends it no signal
        observed = transitions.drain_requested(observed, "a", "an operator asked for it").observed
    ending = ObservedReport(state=ReplicaState.DRAINING, end_reason="SIGTERM")
    assert the_replica(reported(observed, ending)).end_reason == "SIGTERM"
