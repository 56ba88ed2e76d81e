"""Who executed each call, as a batch of results says it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.client.calls.call_spec import EXECUTED_PAYLOADS, PAYLOADS, CallSpec
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.stream.incoming_results import ArrivingValues, IncomingResults, as_wanted, ascending, backends_of
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.codec import MSGPACK
from slotmesh.v1 import call_pb2


def batch(starts: list[int], backends: list[str]) -> call_pb2.ResultBatch:
    return call_pb2.ResultBatch(executor_starts=starts, backends=backends)


def spec(wanted: object) -> CallSpec:
    return CallSpec("e", "m", ViewOptions(), CallQueue(), wanted)


def test_stretches_become_a_name_for_each_payload() -> None:
    assert backends_of(batch([0, 2, 3], ["a", "b", "a"]), 5) == ["a", "a", "b", "a", "a"]
    assert backends_of(batch([0], ["a"]), 1) == ["a"]
    assert backends_of(batch([], []), 3) == []


@pytest.mark.parametrize(
    ("starts", "backends"),
    [([0, 1], ["a"]), ([], ["a"]), ([0], []), ([1], ["a"]), ([0, 3], ["a", "b"]), ([0, 2, 1], ["a", "b", "c"])],
)
def test_what_contradicts_itself_ends_the_stream(starts: list[int], backends: list[str]) -> None:
    with pytest.raises(ValueError, match="executors of 3 payloads"):
        backends_of(batch(starts, backends), 3)


def test_who_wants_them_gets_pairs() -> None:
    payloads, names = [b"x", b"y", b"z"], ["a", "b", "c"]
    assert as_wanted(spec(PAYLOADS), payloads, names, 1, 3) == [b"y", b"z"]
    assert as_wanted(spec(EXECUTED_PAYLOADS), payloads, names, 1, 3) == [(b"y", "b"), (b"z", "c")]
    assert as_wanted(spec(EXECUTED_PAYLOADS), payloads, [], 0, 2) == [(b"x", ""), (b"y", "")]


def test_names_follow_their_payloads_where_ids_are_sorted() -> None:
    ids = [5, 2, 9]
    assert ascending(ids, [b"5", b"2", b"9"])[1] == [b"2", b"5", b"9"]
    assert ascending(ids, ["five", "two", "nine"])[1] == ["two", "five", "nine"]


class Taken:
    """Takes an outcome."""

    def __init__(self) -> None:
        self.outcome: Any = None

    def done(self) -> bool:
        return self.outcome is not None

    def set_result(self, result: Any) -> None:
        self.outcome = result


@given(counts=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5), data=st.data())
def test_each_call_gets_its_own_backend_in_whichever_order_results_come(
    counts: list[tuple[int, bool]], data: st.DataObject
) -> None:
    pending, sinks = PendingCalls(), []
    for count, wants_backends in counts:
        taken = [Taken() for _ in range(count)]
        kind = spec(EXECUTED_PAYLOADS if wants_backends else PAYLOADS)
        pending.add(SentPart(kind, [b""] * count, 0, list(taken)))
        sinks += [(each, wants_backends) for each in taken]
    ids = data.draw(st.permutations(range(1, len(sinks) + 1)))
    executors = data.draw(st.lists(st.sampled_from("ab"), min_size=len(ids), max_size=len(ids)))
    results = call_pb2.ResultBatch(call_ids=ids, payloads=[b"%d" % each for each in ids], content_type=MSGPACK)
    for at, name in enumerate(executors):
        if not at or executors[at - 1] != name:
            results.executor_starts.append(at)
            results.backends.append(name)
    incoming = IncomingResults(pending, ArrivingValues(pending, lambda: None), lambda *_: None)
    incoming.accept(call_pb2.ResultFrame(batches=[results]))
    backend_of = dict(zip(ids, executors, strict=True))
    for call_id, (sink, wants_backends) in enumerate(sinks, 1):
        payload = b"%d" % call_id
        assert sink.outcome == ((payload, backend_of[call_id]) if wants_backends else payload)
