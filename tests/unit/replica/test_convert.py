"""From a router's frames to runs, and what is refused on the way."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Any

import pytest

from replica_service.convert.reports import reconciled_to_wire
from replica_service.convert.runs import questions_of, runs_of
from replica_service.core.call_metadata import MAX_CREDIT
from replica_service.core.runs import RouterPeer
from replica_service.core.session_table import SessionReport
from slotmesh.calls.call_options import NO_METADATA
from slotmesh.codec import JSON, OCTET_STREAM
from slotmesh.errors import BadRequest, DuplicateCallId, Executed, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import MAX_FRAME_RANGES
from slotmesh.v1 import call_pb2
from tests.support.wire_options import wire_options

NOW = 50.0


def frame(*batches: replica_service_pb2.RunBatch) -> replica_service_pb2.RunFrame:
    return replica_service_pb2.RunFrame(batches=batches)


def batch(first: int = 1, count: int = 1, *, options: dict[str, Any] | None = None, **fields: Any) -> Any:
    return replica_service_pb2.RunBatch(
        first_run_id=first, payloads=[b"x"] * count, options=wire_options(**(options or {})), **fields
    )


def test_a_run_has_all_that_its_batch_says() -> None:
    options = {"method": "add", "content_type": JSON, "ordering_key": "k", "metadata": {"who": "ann"}}
    link = RouterPeer()
    (run,), rejected, _ = runs_of(
        frame(batch(7, 3, options=options, endpoint="e", partition=5, owner_epoch=9, time_left=timedelta(seconds=2))),
        link,
        NOW,
    )
    assert not rejected
    assert (run.link, run.first, run.lo, run.hi, run.endpoint) == (link, 7, 0, 3, "e")
    assert (run.options.method, run.options.content_type, run.options.ordering_key) == ("add", JSON, "k")
    assert run.options.metadata == {"who": "ann"}
    assert (run.partition, run.owner_epoch, run.arrived, run.deadline) == (5, 9, NOW, NOW + 2)
    assert link.last_run_id == 9


def test_defaults() -> None:
    (run,), _, _ = runs_of(frame(batch(options={"method": "__call__"})), RouterPeer(), NOW)
    assert (run.options.method, run.options.content_type, run.deadline) == ("", OCTET_STREAM, inf)
    assert run.options.metadata is NO_METADATA


@pytest.mark.parametrize(
    ("values", "nbytes", "credit"),
    [
        (0, 0, MAX_CREDIT),
        (1, 1, (1, 1)),
        (16, 2048, (16, 2048)),
        (257, 2**40, MAX_CREDIT),
        (-1, -1, MAX_CREDIT),
    ],
)
@pytest.mark.parametrize("keys", [[], ["a", "b"]])
def test_a_handler_may_be_as_far_ahead_as_the_router_says(
    values: int, nbytes: int, credit: tuple[int, int], keys: list[str]
) -> None:
    options = {"streaming": True}
    columns = {"ordering_keys": keys, "partitions": [1] * len(keys), "owner_epochs": [1] * len(keys)}
    wire = batch(1, 2, options=options, values_ahead=values, bytes_ahead=nbytes, **columns)
    runs, rejected, _ = runs_of(frame(wire), RouterPeer(), NOW)
    assert not rejected
    assert {run.options.credit for run in runs} == {credit}


def test_equal_options_are_one_object() -> None:
    options = {"method": "a"}
    runs, _, _ = runs_of(frame(batch(1, options=options), batch(2, options=options)), RouterPeer(), NOW)
    assert runs[0].options is runs[1].options


@pytest.mark.parametrize(
    ("options", "fields", "reason", "field"),
    [
        ({"content_type": "text/plain"}, {}, Reason.BAD_REQUEST, "options.content_type"),
        ({}, {"session_id": "s", "call_ids": [1]}, Reason.BAD_REQUEST, "epoch"),
        ({}, {"session_id": "s", "epoch": 1}, Reason.BAD_REQUEST, "call_ids"),
        ({}, {"session_id": "s", "epoch": 1, "call_ids": [1, 2]}, Reason.BAD_REQUEST, "call_ids"),
        ({}, {"session_id": "s", "epoch": 1, "call_ids": [1, 3, 3]}, Reason.BAD_REQUEST, "call_ids"),
        ({}, {"recover": True}, Reason.BAD_REQUEST, "session_id"),
        ({"ordering_key": "k"}, {"partition": 4096}, Reason.BAD_REQUEST, "partition"),
        ({"ordering_key": "k"}, {"partition": -1}, Reason.BAD_REQUEST, "partition"),
    ],
)
def test_what_is_wrong_with_a_run_fails_that_run(
    options: dict[str, Any], fields: dict[str, Any], reason: Reason, field: str
) -> None:
    good, wrong = batch(1), batch(2, 3, options=options, **fields)
    runs, rejected, _ = runs_of(frame(good, wrong, batch(5)), RouterPeer(), NOW)
    assert [run.first for run in runs] == [1, 5]
    ((run, failure),) = rejected
    assert (run.first, len(run.payloads)) == (2, 3)
    assert (failure.reason, failure.executed, failure.metadata["field"]) == (reason, Executed.NO, field)
    assert field in failure.message


@pytest.mark.parametrize(("sent", "ids"), [([7], range(7, 10)), ([7, 9, 12], (7, 9, 12))])
def test_a_run_of_a_session_says_whose_calls_it_has(sent: list[int], ids: Any) -> None:
    fields: dict[str, Any] = {"session_id": "s", "epoch": 4, "attempt": 1, "recover": True}
    (run, other), _, _ = runs_of(frame(batch(1, 3, call_ids=sent, **fields), batch(4)), RouterPeer(), NOW)
    record = run.record
    assert record is not None
    assert (record.session_id, record.epoch, record.attempt, record.recovers) == ("s", 4, 1, True)
    assert (record.call_ids, record.count, record.pending) == (ids, 3, 3)
    assert other.record is None


@pytest.mark.parametrize("second", [2, 3, 1])
def test_run_ids_strictly_increase(second: int) -> None:
    link = RouterPeer()
    runs_of(frame(batch(1, 3)), link, NOW)
    with pytest.raises(DuplicateCallId, match=f"got {second} after 3"):
        runs_of(frame(batch(second)), link, NOW)


def test_run_ids_start_at_one() -> None:
    with pytest.raises(DuplicateCallId):
        runs_of(frame(batch(0)), RouterPeer(), NOW)


def test_a_run_has_payloads() -> None:
    with pytest.raises(BadRequest, match="at least one"):
        runs_of(frame(batch(1, 0)), RouterPeer(), NOW)


# -- questions about sessions -----------------------------------------------------------------------------------------


def test_a_question_about_more_calls_than_a_frame_may_name_is_refused() -> None:
    asked = replica_service_pb2.SessionCalls(session_id="s", epoch=2, calls=[call_pb2.IdRange()] * 30_000)
    with pytest.raises(BadRequest, match=r"reconcile\.sessions\.calls"):
        questions_of(replica_service_pb2.Reconcile(sessions=[asked] * 2))


def test_answers_are_cut_into_frames_a_session_in_each_as_a_whole() -> None:
    def spans(count: int) -> list[tuple[int, int]]:
        return [(2 * at + 1, 2 * at + 1) for at in range(count)]

    half = MAX_FRAME_RANGES // 2
    reports = {
        "a": SessionReport(spans(half), spans(half), ()),
        "b": SessionReport((), spans(1), spans(1)),
        "c": SessionReport(spans(3 * MAX_FRAME_RANGES), (), spans(1)),
        "d": SessionReport((), (), ()),
    }
    frames = list(reconciled_to_wire((name, 2, report) for name, report in reports.items()))
    assert [[each.session_id for each in frame.joined] for frame in frames] == [["a"], ["b"], ["c"], ["d"]]
    assert [[each.session_id for each in frame.kept] for frame in frames] == [["a"], ["b"], [], []]
    assert [[each.session_id for each in frame.evicted] for frame in frames] == [[], ["b"], ["c"], []]


def test_answers_that_fit_are_one_frame() -> None:
    answers = [(str(number), 2, SessionReport((), [(1, 1)], ())) for number in range(60)]
    (frame_of_all,) = reconciled_to_wire(answers)
    assert len(frame_of_all.joined) == 60
