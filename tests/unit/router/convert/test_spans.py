"""Ranges of calls that a session brings along."""

from __future__ import annotations

from router_service.convert.sessions import Spans, asked_of
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2

SPANS = [(1, 3), (7, 7), (2**53 - 2, 2**53 - 1)]


def spans() -> Spans:
    return Spans([call_pb2.IdRange(first=first, last=last) for first, last in SPANS])


def test_they_are_a_sequence() -> None:
    assert list(spans()) == SPANS
    assert len(spans()) == 3
    assert spans()[-1] == SPANS[-1]
    assert spans()[1:] == SPANS[1:]
    assert SPANS[1] in spans()
    assert not Spans([])


def test_replicas_are_asked_the_same_however_often_and_whatever_they_are_kept_in() -> None:
    kept = spans()
    asked = [
        replica_service_pb2.SessionCalls.FromString(raw) for raw in (asked_of(kept), asked_of(kept), asked_of(SPANS))
    ]
    assert [[(each.first, each.last) for each in question.calls] for question in asked] == [SPANS] * 3
