"""A call that is sampled is a run of its own, whatever it comes with; all others stay together, in order."""

from __future__ import annotations

from typing import Any

import pytest

from replica_service.convert.runs import runs_of
from replica_service.core.runs import ReplicaRun, RouterPeer
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2

SAMPLED = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"
OTHER = "00-" + "b" * 32 + "-" + "2" * 16 + "-00"


def converted(most: int = 16, *, shadow: bool = False, **fields: Any) -> list[ReplicaRun]:
    """Of ten calls, of which the fourth to the sixth are sampled, and the seventh is in a trace that is not."""
    origins = replica_service_pb2.RunOrigins(trace_starts=[3, 6, 7], traceparents=[SAMPLED, OTHER, ""], shadow=shadow)
    batch = replica_service_pb2.RunBatch(
        first_run_id=101,
        endpoint="e",
        options=call_pb2.CallOptions(method="echo"),
        payloads=[b"%d" % index for index in range(10)],
        origins=origins,
        **fields,
    )
    frame = replica_service_pb2.RunFrame(batches=[batch])
    runs, rejected, _ = runs_of(frame, RouterPeer(), 1.0, most_traced=most)
    assert not rejected
    ids = [run.first + at for run in runs for at in range(run.begin, run.end)]
    assert ids == list(range(101, 111)), "each call once, in order"
    assert [run.payloads[at] for run in runs for at in range(run.begin, run.end)] == list(batch.payloads)
    assert all(run.end - run.begin == 1 for run in runs if run.traced)
    return runs


def sampled(runs: list[ReplicaRun]) -> list[int]:
    return [run.first + run.begin for run in runs if run.traced]


def test_sampled_calls_are_alone() -> None:
    runs = converted()
    assert sampled(runs) == [104, 105, 106]
    assert len(runs) == 5
    assert [run.traced.traceparent for run in runs if run.traced] == [SAMPLED] * 3


@pytest.mark.parametrize("keys", [["a"] * 10, list("aabbccddee"), list("abcdefghij")], ids=["one", "pairs", "all"])
def test_with_keys_they_are_a_stretch_of_their_own(keys: list[str]) -> None:
    runs = converted(ordering_keys=keys, partitions=[1] * 10, owner_epochs=[1] * 10)
    assert sampled(runs) == [104, 105, 106]
    assert [run.ordering_key for run in runs for _ in range(run.begin, run.end)] == keys
    assert all(run.payloads is runs[0].payloads for run in runs)


def test_in_a_session_each_has_its_record() -> None:
    runs = converted(session_id="s", epoch=1, call_ids=[5])
    assert [call_id for run in runs if run.record for call_id in run.record.call_ids] == list(range(5, 15))
    assert sampled(runs) == [104, 105, 106]


def test_no_more_than_the_bound_shadows_not_at_all_and_nothing_is_cut_where_nothing_is_traced() -> None:
    assert sampled(converted(2)) == [104, 105]
    assert len(converted(shadow=True)) == 1
    assert len(converted(0)) == 1
