"""The JSON form of messages, which scripts read: names, nulls, times, durations, enum values, numbers."""

from __future__ import annotations

import json

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.commands.calls import call_document
from slotmesh.cli.documents import message_document, word_of
from slotmesh.cli.shifting import shift_document
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2, rollout_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from slotmesh.v1.tap_service_pb2 import OPEN_CALL_STATE_AT_REPLICA, OpenCall

START = Timestamp(seconds=1_767_323_045)
ISO = "2026-01-02T03:04:05+00:00"


def test_a_message_has_all_its_fields_in_the_form_of_json() -> None:
    decision = rollout_pb2.ScaleDecision(time=START, to_replicas=2, queue_time=Duration(nanos=250_000_000))
    status = mesh_pb2.BackendStatus(restart_count=2**40, latest_decision=decision)
    document = json.loads(json.dumps(message_document(status, leave_out={"rollout"})))
    assert document["restart_count"] == 2**40, "a number, not text"
    assert (document["wanted_replicas"], document["latest_change"]) == (None, None)
    assert document["latest_decision"]["time"] == ISO
    assert document["latest_decision"]["queue_time_s"] == 0.25
    assert "queue_time" not in document["latest_decision"]
    assert document["latest_decision"]["late_routers"] == 0
    assert "rollout" not in document


def test_maps_are_objects_sorted_by_their_keys() -> None:
    weights = {f"v{number}": 0.125 for number in (7, 3, 5, 1, 8, 2, 6, 4)}
    document = message_document(mesh_pb2.TrafficPolicy(weights=weights))
    assert [*document["weights"].items()] == sorted(weights.items())
    assert document["shadows"] == {}


@pytest.mark.parametrize(
    ("message", "field", "word"),
    [
        (mesh_pb2.Replica(state=mesh_pb2.REPLICA_STATE_READY), "state", "READY"),
        (rollout_pb2.Rollout(phase=rollout_pb2.ROLLOUT_PHASE_ROLLING_BACK), "phase", "ROLLING_BACK"),
        (pb.WatchEventsResponse(kind=pb.EVENT_KIND_REPLICA_READY), "kind", "replica-ready"),
        (pb.ConfigurationChange(change=pb.CHANGE_UPDATED), "change", "updated"),
    ],
)
def test_enum_values_are_words(message: mesh_pb2.Replica, field: str, word: str) -> None:
    assert word_of(message, field) == word
    assert message_document(message)[field] == word


def test_a_value_that_only_a_newer_controller_knows_is_its_number() -> None:
    newer = mesh_pb2.Replica.FromString(bytes([mesh_pb2.Replica.STATE_FIELD_NUMBER << 3, 99]))
    assert message_document(newer)["state"] == "99"


def test_a_shift_has_figures_by_backend_and_guards_as_people_write_them() -> None:
    shift = shift_pb.TrafficShift(
        endpoint="e",
        phase=shift_pb.SHIFT_PHASE_SHIFTING,
        from_weights={"v1": 1.0},
        to_weights={"v2": 1.0},
        every=Duration(seconds=30),
        start_time=START,
        guards=[
            shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_ERROR_RATE, max_error_rate=0.01),
            shift_pb.ShiftGuard(figure=shift_pb.SHIFT_FIGURE_P99, max_time=Duration(nanos=200_000_000), shadow="dark"),
        ],
        figures=[
            shift_pb.ShiftFigures(backend="v2", calls=10, failed=1, p99=Duration(nanos=20_000_000)),
            shift_pb.ShiftFigures(backend="dark", calls=7, shadow=True),
        ],
    )
    document = shift_document(shift)
    assert (document["phase"], document["from"], document["to"]) == ("SHIFTING", {"v1": 1.0}, {"v2": 1.0})
    assert (document["every_s"], document["start_time"], document["end_time"]) == (30.0, ISO, None)
    assert document["guards"] == ["error_rate=0.01", "dark:p99=200ms"]
    assert document["figures"] == {"v2": {"calls": 10, "failed": 1, "unanswered": 0, "p99_s": 0.02}}
    assert document["shadow_figures"] == {"dark": {"copies": 7, "failed": 0, "unanswered": 0, "p99_s": None}}


def test_an_open_call_has_its_key_only_if_the_router_has_sent_it() -> None:
    call = OpenCall(
        state=OPEN_CALL_STATE_AT_REPLICA, endpoint="e", method="m", age=Duration(nanos=1_234_567), replica_id="a"
    )
    document = call_document("h:1", call)
    assert (document["state"], document["replica"], document["router"]) == ("running", "a", "h:1")
    assert (document["age_s"], document["sent_s"]) == (0.001, None)
    assert (document["backend"], document["tenant"], document["partition"]) == (None, None, None)
    assert "key" not in document
    call.ordering_key = "user-7"
    assert call_document("h:1", call, is_behind=True)["key"] == "user-7"
    assert call_document("h:1", call, is_behind=True)["state"] == "in lane"
