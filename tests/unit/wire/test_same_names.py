"""Fields that messages and values share are copied by their names, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from controller_service.core.loads import BackendLoad, CallEnds
from slotmesh.convert.same_names import message_of, same_fields
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    endpoint: str
    backends: tuple[str, ...] = ()
    secret: str = "not in the message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    revision: int
    created: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    endpoint: str
    steps: int
    phase: str = "an enum has another form"
    from_weights: dict[str, float]


def test_texts_numbers_lists_and_maps_are_copied_and_enums_are_not() -> None:
    wire = message_of(shift_pb.TrafficShift, Shift(endpoint="e", steps=3, from_weights={"v1": 0.5}))
    assert wire == shift_pb.TrafficShift(endpoint="e", steps=3, from_weights={"v1": 0.5})


def test_messages_within_are_made_likewise() -> None:
    value = Applied(revision=7, created=("backend/v1",), waits=(Wait(endpoint="a", backends=("v1", "v2")),))
    assert message_of(pb.ApplyMeshResponse, value) == pb.ApplyMeshResponse(
        revision=7, created=["backend/v1"], waits=[pb.TrafficWait(endpoint="a", backends=["v1", "v2"])]
    )


def test_what_is_given_counts_and_none_is_left_out() -> None:
    ends = CallEnds(3, 1, 0)
    load = BackendLoad(backend="v1", queued=1, ongoing=2, ended=ends)
    wire = message_of(mesh_pb2.BackendLoad, load, queued=9, sample_time=None)
    assert (wire.queued, wire.ongoing) == (9, 2)
    assert (wire.ended.total, wire.ended.failed, list(wire.ended.times)) == (3, 1, list(ends.times))
    assert not wire.HasField("shadow_ended")
    assert not wire.HasField("sample_time")


def test_an_unknown_field_is_a_defect() -> None:
    with pytest.raises(ValueError, match="colour"):
        message_of(pb.TrafficWait, Wait(endpoint="e"), colour="red")


def test_fields_of_a_message_by_name() -> None:
    wire = mesh_pb2.BackendLoad(backend="v1", queued=4)
    assert same_fields(wire, ("backend", "queued", "sent")) == {"backend": "v1", "queued": 4, "sent": 0}
