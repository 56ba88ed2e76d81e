"""Callers share the memory of repeated calls: none drives out another, and no event forgets without a bound."""

from __future__ import annotations

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.repeated_calls import FORGOTTEN_AT_ONCE, CallVerdict, Decision, RepeatedCalls
from replica_service.core.request_memory import OUTCOME_BYTES
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.calls.request_ids import KEEP_S, CallIdentity
from slotmesh.errors import Executed, Failure, Reason

LINK = RouterPeer()


def run_of(number: int, caller: str = "", *, streaming: bool = False) -> ReplicaRun:
    run = ReplicaRun(LINK, number, [b""], ReplicaCallOptions(streaming=streaming), "e", 0.0)
    run.request = CallIdentity(str(number), b"same", caller)
    return run


def reason_of(decision: Decision) -> Reason | None:
    failure = decision.outcome.failure
    return None if failure is None else failure.reason


def test_a_caller_with_many_outcomes_loses_its_own() -> None:
    calls = RepeatedCalls(lambda _run: True, max_bytes=100 * OUTCOME_BYTES)
    for number, caller in ((1, "client/bob"), *((number, "client/flood") for number in range(2, 500))):
        run = run_of(number, caller)
        assert calls.begin(run, 0.0).verdict is CallVerdict.EXECUTE
        calls.ended(run, b"x", 0.0)
    assert calls.begin(run_of(1, "client/bob"), 1.0).outcome.values == (b"x",)
    assert reason_of(calls.begin(run_of(2, "client/flood"), 1.0)) is Reason.RESULT_EVICTED
    assert calls.held_bytes <= 100 * OUTCOME_BYTES


def test_a_caller_with_many_ids_is_refused_and_others_are_not() -> None:
    calls = RepeatedCalls(lambda _run: True, max_calls=100)
    taken = [calls.begin(run_of(number, "client/flood"), 0.0).verdict for number in range(1, 101)]
    assert taken.count(CallVerdict.EXECUTE) == 50
    refused = calls.begin(run_of(200, "client/flood"), 0.0)
    assert (refused.verdict, reason_of(refused)) == (CallVerdict.FAIL, Reason.QUEUE_FULL)
    assert calls.begin(run_of(201, "client/bob"), 0.0).verdict is CallVerdict.EXECUTE


def test_without_authentication_all_ids_are_one_callers() -> None:
    calls = RepeatedCalls(lambda _run: True, max_calls=100)
    taken = [calls.begin(run_of(number), 0.0).verdict for number in range(1, 102)]
    assert taken == [CallVerdict.EXECUTE] * 100 + [CallVerdict.FAIL]


def test_the_ids_of_two_callers_are_two_calls() -> None:
    calls = RepeatedCalls(lambda _run: True)
    assert calls.begin(run_of(1, "client/bob"), 0.0).verdict is CallVerdict.EXECUTE
    assert calls.begin(run_of(1, "client/eve"), 0.0).verdict is CallVerdict.EXECUTE


def test_one_event_forgets_a_bounded_number_of_calls() -> None:
    calls, count = RepeatedCalls(lambda _run: True), 20 * FORGOTTEN_AT_ONCE
    for number in range(1, count + 1):
        calls.begin(run := run_of(number), 0.0)
        calls.ended(run, b"", 0.0)
    assert calls.begin(run_of(count), KEEP_S).verdict is CallVerdict.EXECUTE, "its time is over, whatever was forgotten"
    assert len(calls) == count - FORGOTTEN_AT_ONCE
    assert calls.expire(KEEP_S, 10)
    assert len(calls) == count - FORGOTTEN_AT_ONCE - 10
    while calls.expire(KEEP_S):
        pass
    assert len(calls) == 1


def test_texts_of_failures_and_values_of_pending_calls_are_counted() -> None:
    calls = RepeatedCalls(lambda _run: True)
    calls.begin(failed := run_of(1), 0.0)
    failure = Failure(
        reason=Reason.HANDLER_ERROR, message="m" * 5_000, executed=Executed.YES, metadata={"k": "v" * 900}
    )
    calls.ended(failed, failure, 0.0)
    assert 5_900 < calls.held_bytes < 7_000
    calls.begin(streamed := run_of(2, streaming=True), 0.0)
    calls.yielded(streamed, [b"v" * 10_000])
    assert 15_900 < calls.held_bytes < 17_500
    calls.ended(streamed, Failure(reason=Reason.CANCELLED, message="not begun"), 0.0)
    assert calls.held_bytes < 7_000
