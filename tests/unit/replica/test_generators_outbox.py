"""Values in the outbox: in order, together, and before what ends their calls."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replica_service.convert.slots import Issuer
from replica_service.core.permits import PermitCapacity
from replica_service.shell.router_outbox import Outbox, Response
from slotmesh.codec import JSON, MSGPACK
from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAME_CALLS
from tests.support.fakes.clock import FakeClock

BROKEN = Failure(reason=Reason.HANDLER_ERROR, message="no", executed=Executed.YES)


def outbox() -> Outbox:
    made = Outbox(lambda: PermitCapacity(8, 0, 4096, False, 0), Issuer(FakeClock()))
    assert made.next_frame() is not None, "capacity comes first"
    return made


def put(box: Outbox, run_id: int, *values: bytes, content_type: str = "") -> None:
    box.values(run_id, values, sum(map(len, values)), content_type)


class Router:
    """Keeps what it hears of each call: values, then the end."""

    def __init__(self) -> None:
        self.heard: dict[int, list[Any]] = {}
        self.frames = 0
        self._parts: dict[int, bytearray] = {}

    def read(self, box: Outbox, frames: int = 10_000) -> Router:
        while frames and (frame := box.next_frame()) is not None:
            self._take(frame)
            frames -= 1
        return self

    def _take(self, frame: Response) -> None:
        if frame.WhichOneof("frame") == "chunk":
            parts = self._parts.setdefault(frame.chunk.call_id, bytearray())
            assert len(parts) == frame.chunk.offset, "two payloads of one call at a time"
            parts += frame.chunk.data
            return
        results = frame.results
        self.frames += 1
        assert sum(len(ids_of_results(batch)) for batch in results.batches) <= MAX_FRAME_CALLS
        for batch in results.batches:
            sizes = batch.chunked_sizes or [0] * len(ids_of_results(batch))
            for run_id, payload, size in zip(ids_of_results(batch), batch.payloads, sizes, strict=True):
                value = bytes(self._parts.pop(run_id)) if size else payload
                assert not size or size == len(value)
                self._hear(run_id, value if batch.partial else ("result", value))
        for errors in results.errors:
            for run_id in ids_from_wire(errors.calls):
                self._hear(run_id, "failed")
        for each in results.done:
            for run_id in range(each.first, each.last + 1):
                self._hear(run_id, "done")

    def _hear(self, run_id: int, what: Any) -> None:
        heard = self.heard.setdefault(run_id, [])
        assert not heard or isinstance(heard[-1], bytes), "more after the end"
        heard.append(what)


def test_values_of_several_calls_and_the_ends_share_a_frame() -> None:
    box = outbox()
    put(box, 1, b"a", b"b")
    put(box, 2, b"c")
    put(box, 1, b"d")
    box.done(1, 1)
    box.failed(2, 1, BROKEN)
    router = Router().read(box)
    assert router.heard == {1: [b"a", b"b", b"d", "done"], 2: [b"c", "failed"]}
    assert router.frames == 1


def test_an_end_does_not_pass_values_that_had_no_room() -> None:
    box = outbox()
    block = bytes(CHUNK_BYTES)
    for run_id in range(1, 13):
        put(box, run_id, block)
    box.done(1, 12)
    router = Router().read(box, frames=1)
    assert all(heard == [block] for heard in router.heard.values())
    assert len(router.heard) == MAX_FRAME_BYTES // CHUNK_BYTES
    router.read(box)
    assert router.heard == {run_id: [block, "done"] for run_id in range(1, 13)}


def test_results_after_values_are_not_lost() -> None:
    """The newest batch of results may leave before the newest batch of values, and the other way round."""
    box = outbox()
    block = bytes(CHUNK_BYTES)
    box.results(1, [block] * 3, 3 * CHUNK_BYTES, "")
    for run_id in (4, 5, 6, 7):
        put(box, run_id, block)
    router = Router().read(box, frames=1)
    assert set(router.heard) == {1, 2, 3}
    box.results(8, [b"late"], 4, "")
    router.read(box)
    assert router.heard[8] == [("result", b"late")]


def test_what_nobody_reads_is_forgotten() -> None:
    box = outbox()
    put(box, 1, bytes(CHUNK_BYTES + 1), b"behind")
    put(box, 2, b"a")
    box.discard()
    put(box, 1, b"more")
    box.done(1, 2)
    assert box.next_frame() is None


def test_who_leaves_takes_values_along() -> None:
    box = outbox()
    taken: list[int] = []
    put(box, 1, b"a")
    box.take_values(taken.extend)
    put(box, 2, bytes(CHUNK_BYTES + 1), b"c")
    assert taken == []
    Router().read(box)
    assert sorted(taken) == [1, 2, 2]


SIZES = st.sampled_from([0, 3, CHUNK_BYTES // 2, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
STEPS = st.lists(
    st.tuples(st.just("values"), st.integers(1, 4), st.lists(SIZES, min_size=1, max_size=3))
    | st.tuples(st.sampled_from(["done", "failed"]), st.integers(1, 4), st.integers(1, 2))
    | st.tuples(st.just("result"), st.just(0), SIZES)
    | st.tuples(st.just("read"), st.integers(1, 6), st.none()),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_every_call_is_told_all_in_order(steps: list[tuple[str, int, Any]]) -> None:
    """Values of calls 1 … 4 in two content types, ends of one or two of them, results of others, and a slow reader."""
    box, router = outbox(), Router()
    expected: dict[int, list[Any]] = {}
    ended: set[int] = set()
    result_id = 100
    for kind, number, what in steps:
        if kind == "read":
            router.read(box, number)
        elif kind == "result":
            result_id += 1
            expected[result_id] = [("result", bytes(what))]
            box.results(result_id, [bytes(what)], what, "")
        elif kind == "values" and number not in ended:
            values = [bytes([len(expected.get(number, ())) % 256]) * size for size in what]
            expected.setdefault(number, []).extend(values)
            put(box, number, *values, content_type=JSON if number % 2 else MSGPACK)
        elif kind != "values" and ended.isdisjoint(range(number, number + what)):
            for run_id in range(number, number + what):
                ended.add(run_id)
                expected.setdefault(run_id, []).append(kind)
            if kind == "done":
                box.done(number, what)
            else:
                box.failed(number, what, BROKEN)
    router.read(box)
    assert router.heard == expected
