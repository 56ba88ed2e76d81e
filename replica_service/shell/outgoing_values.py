"""Yielded values in transit to one router, and the ends of calls, which are sent after the values.

Purpose: values join the pending results as batches of their own. A value in chunks is overtaken by all others, except
later values and the end of its own call.
Invariants: values of one call are sent in order; the outcome of a call is in the frame of its last value or a later
one. Of one call, one value at a time is in chunks.
Owner: the outbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from slotmesh.calls import id_ranges
from slotmesh.calls.id_ranges import joined
from slotmesh.convert.batches import errors_to_wire, ranges_to_wire, write, write_ids
from slotmesh.errors import Failure
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.status import to_wire
from slotmesh.streams.chunks import ChunkTurns, Lines
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAME_CALLS
from slotmesh.v1 import call_pb2

OutgoingEnd = tuple[int, int, Failure | None]
"""Run id of the first of some calls, how many they are, and why they failed, if they did."""
ChunkOwner = tuple[int, str]
"""Run id and content type of what leaves in chunks."""


class OutgoingResults:
    """Results, or values, of one content type that fit into one frame."""

    __slots__ = ("chunked_sizes", "content_type", "ends", "ids", "is_partial", "payloads", "size")

    def __init__(self, content_type: str, *, is_partial: bool = False) -> None:
        self.content_type = content_type
        self.is_partial = is_partial
        """They are values."""
        self.ids: Sequence[int] = ()
        self.payloads: list[bytes] = []
        self.size = 0
        self.chunked_sizes: tuple[int, ...] = ()
        """Size of the one value that has left in chunks, where it is that."""
        self.ends: list[OutgoingEnd] = []
        """What waits for these values to leave."""

    def to_wire(self, *, is_apart: bool) -> call_pb2.ResultBatch:
        """`is_apart`: without its payloads."""
        batch = call_pb2.ResultBatch(
            content_type=self.content_type, partial=self.is_partial, chunked_sizes=self.chunked_sizes
        )
        write_ids(batch, self.ids)
        if not is_apart:
            write(batch, self.payloads, as_block=not self.is_partial)
        return batch

    def has_room(self, count: int, size: int) -> bool:
        """Whether this number of further payloads, with this total of bytes, fits."""
        return self.size + size <= MAX_FRAME_BYTES and len(self.ids) + count <= MAX_FRAME_CALLS


class OutgoingValues:
    """Values that wait to leave, and ends that wait for them. False while nothing does."""

    def __init__(self, batches: deque[OutgoingResults], large: ChunkTurns[ChunkOwner]) -> None:
        """Values leave with `batches`, those larger than a chunk by `large`."""
        self._batches = batches
        self._large = large
        self._last: OutgoingResults | None = None
        """The newest batch of values, until it leaves."""
        self._lines: Lines[tuple[bytes, str] | OutgoingEnd] = Lines()
        """What waits behind a value that leaves in chunks: values, with their content types, and the end."""

    def __bool__(self) -> bool:
        return self._last is not None or bool(self._lines)

    def clear(self) -> None:
        """Drops everything: the link has ended."""
        self._last = None
        self._lines.clear()

    def put(self, run_id: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        """The next values of a call, `size` bytes in all."""
        if run_id in self._lines or size > CHUNK_BYTES:
            for payload in payloads:
                self._put_one(run_id, payload, content_type)
        else:
            self._join(run_id, payloads, size, content_type)

    def end(self, first: int, count: int, failure: Failure | None) -> Iterator[OutgoingEnd]:
        """Adds ended calls. Returns the ends that can be sent immediately."""
        for run_id in self._lines.among(range(first, first + count)):
            self._lines.wait(run_id, (run_id, 1, failure))
            yield from self._end(first, run_id - first, failure)
            first, count = run_id + 1, first + count - run_id - 1
        yield from self._end(first, count, failure)

    def chunks_left(self, run_id: int, content_type: str, size: int) -> Iterator[OutgoingEnd] | None:
        """Notes a sent last chunk. Returns the ends that can be sent now; None if the payload is no value."""
        return self._go_on(run_id, content_type, size) if run_id in self._lines else None

    def left(self, batch: OutgoingResults) -> Sequence[OutgoingEnd]:
        """Values are in the frame that is being built. Returns the ends that can be sent from now on."""
        if batch is self._last:
            self._last = None
        return batch.ends

    def _put_one(self, run_id: int, payload: bytes, content_type: str) -> None:
        if self._lines.wait(run_id, (payload, content_type)):
            return
        if len(payload) > CHUNK_BYTES:
            self._lines.begin(run_id)
            self._large.add((run_id, content_type), payload)
        else:
            self._join(run_id, (payload,), len(payload), content_type)

    def _join(self, run_id: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        batch = self._last
        if (
            batch is None
            or batch.content_type != content_type
            or batch.chunked_sizes
            or not batch.has_room(len(payloads), size)
        ):
            batch = self._add(OutgoingResults(content_type, is_partial=True))
        batch.ids = joined(batch.ids, [run_id] * len(payloads))
        batch.payloads += payloads
        batch.size += size

    def _add(self, batch: OutgoingResults) -> OutgoingResults:
        self._last = batch
        self._batches.append(batch)
        return batch

    def _end(self, first: int, count: int, failure: Failure | None) -> Iterator[OutgoingEnd]:
        if not count:
            return
        if self._last is not None:
            self._last.ends.append((first, count, failure))
        else:
            yield first, count, failure

    def _go_on(self, run_id: int, content_type: str, size: int) -> Iterator[OutgoingEnd]:
        batch = self._add(OutgoingResults(content_type, is_partial=True))
        batch.ids, batch.payloads, batch.chunked_sizes = [run_id], [b""], (size,)
        for entry in self._lines.end(run_id):
            if len(entry) == 2:
                self._put_one(run_id, *entry)
            else:
                yield from self.end(*entry)


class OutgoingEnds:
    """Ends of one router's calls that are no result in the frame: failures, ends without result, large results.

    Consecutive calls with equal failures share an entry, as do calls that ended without a result. A frame has at most
    `MAX_FRAME_CALLS` of either. Owned by the outbox.
    """

    __slots__ = ("failures", "large", "without_result")

    def __init__(self) -> None:
        self.failures: list[tuple[list[int], Failure]] = []
        self.without_result: list[id_ranges.Range] = []
        """Run ids."""
        self.large: list[tuple[int, str, int]] = []
        """Run id, content type and size in bytes of results whose last chunk was sent."""

    @property
    def calls(self) -> int:
        """The number of calls that failed or ended without a result."""
        failed = sum(len(ids) for ids, _ in self.failures)
        return failed + sum(last - first + 1 for first, last in self.without_result)

    def clear(self) -> None:
        self.failures.clear()
        self.without_result.clear()
        self.large.clear()

    def failed(self, first: int, count: int, failure: Failure) -> None:
        """Adds consecutive calls with the same failure."""
        if not self.failures or self.failures[-1][1] != failure:
            self.failures.append(([], failure))
        self.failures[-1][0].extend(range(first, first + count))

    def done(self, first: int, count: int) -> None:
        """Adds consecutive calls that succeeded without a result."""
        id_ranges.append(self.without_result, first, first + count - 1)

    def tell(self, ends: Iterable[OutgoingEnd]) -> None:
        """Adds the ends of streaming calls, after their values."""
        for first, count, failure in ends:
            if failure is None:
                self.done(first, count)
            else:
                self.failed(first, count, failure)

    def fill(self, response: replica_service_pb2.ExecuteResponse, calls: int) -> None:
        """Moves the ends that fit to the frame, which has `calls` results."""
        frame, trailers = response.results, list[bytes]()
        for run_id, content_type, total in self.large:
            frame.batches.append(
                call_pb2.ResultBatch(
                    call_ids=[run_id], payloads=[b""], content_type=content_type, chunked_sizes=[total]
                )
            )
        calls += len(self.large)
        self.large.clear()
        while self.failures and calls < MAX_FRAME_CALLS:
            ids, failure = self.failures[0]
            part, rest = ids[: MAX_FRAME_CALLS - calls], ids[MAX_FRAME_CALLS - calls :]
            calls += len(part)
            frame.errors.append(errors_to_wire(part, to_wire(failure)))
            trailers.append(failure.trailers)
            if rest:
                self.failures[0] = (rest, failure)
            else:
                self.failures.pop(0)
        if any(trailers):
            response.trailers.extend(trailers)
        if self.without_result:
            frame.done.extend(ranges_to_wire(self.without_result[:MAX_FRAME_CALLS]))
            del self.without_result[:MAX_FRAME_CALLS]
