from __future__ import annotations

from typing import Annotated, Any

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.outbox import COLUMN_CALLS, TURN_CALLS, CallOutbox
from slotmesh.client.calls.queues import CallQueue, LaneGroups
from slotmesh.client.stream.batch_writer import BatchWriter
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.resends import Resends
from slotmesh.convert.batches import count_of
from slotmesh.v1 import router_service_pb2
from tests.unit.client.parts import NONE_LARGE, Sink, make_call, make_spec

PLENTY = 10**9


class Lanes:
    """Lanes of one endpoint, and the frames of their calls."""

    def __init__(self) -> None:
        self.outbox = CallOutbox()
        self.pending = PendingCalls()
        self._groups = LaneGroups()
        self._queues: dict[str, CallQueue[Any]] = {}

    def spec(self, key: str, method: str = "add", **options: Any) -> CallSpec:
        queue = self._queues.setdefault(key, CallQueue(self._groups))
        return make_spec(method, queue, ordering_key=key, **options)

    def frame(self, calls: int = PLENTY) -> router_service_pb2.CallFrame:
        frame = router_service_pb2.CallFrame()
        writer = BatchWriter(None)
        for part in self.outbox.take(calls, PLENTY, NONE_LARGE):
            self.pending.add(part)
            writer.add(frame, part)
        return frame

    def frame_again(self) -> router_service_pb2.CallFrame:
        frame = router_service_pb2.CallFrame()
        for resent in Resends(self.pending.parts()).take(PLENTY, PLENTY, NONE_LARGE):
            BatchWriter(None).add_again(frame, resent, 0.0)
        return frame


def test_lanes_of_one_group_share_a_batch() -> None:
    lanes = Lanes()
    specs = [lanes.spec(key) for key in "abc"]
    for number, spec in enumerate([*specs, *specs]):
        make_call(lanes.outbox, spec, b"%d" % number)
    (batch,) = lanes.frame().batches
    assert list(batch.ordering_keys) == list("abcabc")
    assert list(batch.payloads) == [b"%d" % number for number in range(6)]
    assert (batch.first_call_id, batch.options.ordering_key) == (1, "")
    assert lanes.pending.calls == 6


def test_one_lane_alone_is_an_ordinary_batch() -> None:
    lanes = Lanes()
    spec = lanes.spec("a")
    for _ in range(3):
        make_call(lanes.outbox, spec, b"x")
    (batch,) = lanes.frame().batches
    assert not batch.ordering_keys
    assert batch.options.ordering_key == "a"


def test_a_lane_with_many_calls_has_the_rest_for_itself() -> None:
    lanes = Lanes()
    busy, other = lanes.spec("busy"), lanes.spec("other")
    for number in range(COLUMN_CALLS + 5):
        make_call(lanes.outbox, busy, b"%d" % number)
    make_call(lanes.outbox, other, b"o")
    column, rest = lanes.frame().batches
    assert list(column.ordering_keys) == ["busy"] * COLUMN_CALLS + ["other"]
    assert (rest.options.ordering_key, len(rest.payloads)) == ("busy", 5)


def test_what_is_behind_a_column_waits_until_all_of_it_has_left() -> None:
    lanes = Lanes()
    a, a_get, b = lanes.spec("a"), lanes.spec("a", "get"), lanes.spec("b")
    for spec, payload in ((b, b"b"), (a, b"a1"), (a_get, b"a2")):
        make_call(lanes.outbox, spec, payload)
    assert [list(batch.payloads) for batch in lanes.frame(calls=1).batches] == [[b"b"]]
    make_call(lanes.outbox, a, b"a3")
    assert [list(batch.payloads) for batch in lanes.frame().batches] == [[b"a1"], [b"a2"], [b"a3"]]
    assert not lanes.outbox


def test_a_column_has_the_length_of_a_turn() -> None:
    lanes = Lanes()
    for number in range(TURN_CALLS + 3):
        make_call(lanes.outbox, lanes.spec(f"k{number}"), b"x")
    assert [count_of(batch) for batch in lanes.frame().batches] == [TURN_CALLS, 3]


def test_what_is_left_of_a_column_is_sent_again_with_its_keys() -> None:
    lanes = Lanes()
    for key in "abcd":
        make_call(lanes.outbox, lanes.spec(key), key.encode())
    lanes.frame()
    assert sum(count for *_, count in lanes.pending.settle([2])) == 1
    (batch,) = lanes.frame_again().batches
    assert (list(batch.call_ids), list(batch.ordering_keys)) == ([1, 3, 4], ["a", "c", "d"])
    assert batch.resend
    assert batch.HasField("age")


def test_groups_are_told_apart_by_all_but_the_key() -> None:
    lanes = Lanes()
    group = lanes.spec("a").group
    assert group is not None
    assert lanes.spec("b").group is group
    assert lanes.spec("b", idempotent=True).group is not group
    assert lanes.spec("b", "get").group is not group
    assert make_spec().group is None


def test_a_type_of_results_without_a_hash_is_a_group_of_its_own() -> None:
    groups = LaneGroups()
    wire = make_spec(ordering_key="k").wire
    wanted: Any = Annotated[int, []]
    assert groups.of(wire, wanted) is not groups.of(wire, wanted)
    assert groups.of(wire, int) is groups.of(wire, int)


def test_calls_taken_back_leave_no_trace_in_their_queues() -> None:
    lanes = Lanes()
    specs = [lanes.spec(key) for key in "ab"]
    sinks = [make_call(lanes.outbox, spec, b"x", Sink()) for spec in specs]
    sinks[0].cancelled = sinks[1].cancelled = True
    assert not lanes.frame().batches
    assert all(spec.queue.idle for spec in specs)
    assert not lanes.outbox
