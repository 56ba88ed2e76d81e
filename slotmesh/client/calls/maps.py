"""Maps: their payloads, their combined outcome, and the calls that wait for room in the client.

The iterables of a map are read and encoded piece by piece, as its calls find room.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final

from slotmesh.client.calls.buffer import BufferShare
from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.queues import CallQueue
from slotmesh.codec.arrays import is_array
from slotmesh.errors import Failure, SlotmeshError, items_failed
from slotmesh.status import to_exception

# -- the payloads of a map: its iterables are read and encoded piece by piece, as its calls find room ------------------

PIECE_CALLS: Final = 4_096
"""Items of one piece at most."""
PIECE_BYTES: Final = 1024 * 1024
"""A piece has this number of bytes, or one item, if its items are as large as those of the piece before."""
WHOLE_CALLS: Final = 1_024
"""A map of a list with at most this number of items is one piece."""
_FIRST_CALLS: Final = 64
"""Items of the first piece, whose size is not known."""
_SLICED: Final = (list, tuple, range)

EncodeColumns = Callable[[tuple[Iterable[Any], ...]], list[bytes]]
Piece = tuple[list[bytes], int]
"""Payloads, owned by the receiver, and their bytes."""


def pieces_of(encode: EncodeColumns, columns: tuple[Iterable[Any], ...]) -> Iterator[Piece]:
    """The payloads of a map of these iterables. Items are read once, in order.

    Raises, from the iterator: what `encode` does: EncodeError, and ValueError if the iterables differ in length. Later
    pieces do not raise it again. TypeError for a text or bytes in place of items.
    """
    for each in columns:
        if isinstance(each, str | bytes | bytearray):
            kind = type(each).__name__
            raise TypeError(
                f"map takes an iterable of items for each argument, got one {kind}: write [value], or list(value) for a"
                " call for each of its elements"
            )
    if all(isinstance(each, _SLICED) and len(each) <= WHOLE_CALLS for each in columns) or not _are_iterable(columns):
        yield _piece(encode(columns))  # which raises if they are not iterable
        return
    readers = [_reader_of(each) for each in columns]
    count = _FIRST_CALLS
    while any(map(len, items := tuple(read(count) for read in readers))):
        piece = payloads, nbytes = _piece(encode(items))
        yield piece
        count = max(1, min(PIECE_CALLS, count * 8, PIECE_BYTES * len(payloads) // (nbytes + 1)))


def first_pieces(pieces: Iterator[Piece], share: BufferShare) -> tuple[list[bytes], int, bool]:
    """The payloads of as many pieces as there is room for, and of one more; their bytes; whether that is all."""
    payloads, nbytes = next(pieces, ([], 0))
    while share.has_room(len(payloads), nbytes):
        piece = next(pieces, None)
        if piece is None:
            return payloads, nbytes, True
        payloads += piece[0]
        nbytes += piece[1]
    return payloads, nbytes, False


def _piece(payloads: list[bytes]) -> Piece:
    return payloads, sum(map(len, payloads))


def _are_iterable(columns: tuple[Iterable[Any], ...]) -> bool:
    for each in columns:
        try:
            iter(each)
        except TypeError:
            return False
    return True


def _reader_of(column: Iterable[Any]) -> Callable[[int], Any]:
    """Returns the next items of the column, up to a number of them."""
    if isinstance(column, _SLICED) or is_array(column):
        return _SliceReader(column).read
    items = iter(column)
    return lambda count: list(islice(items, count))


class _SliceReader:
    """Of what is sliced, and stays what it is: an array's rows are encoded together."""

    def __init__(self, column: Any) -> None:
        self._column = column
        self._at = 0

    def read(self, count: int) -> Any:
        start, self._at = self._at, self._at + count
        return self._column[start : self._at]


class Gather:
    """The outcome of a `map`: one list and one future for any number of calls.

    Invariants: the future is done only when every call has its outcome (or when it was cancelled). Of several failures,
    the first by input order is raised, not by time, and lists the items that failed.
    """

    __slots__ = ("_failed", "_failed_at", "_failure", "_keeps_failures", "_left", "_results", "future")

    def __init__(
        self, count: int, future: asyncio.Future[list[Any]], *, keeps_failures: bool, is_open: bool = False
    ) -> None:
        """`keeps_failures`: exceptions are entries of the list, nothing is raised. `is_open`: calls may be added."""
        self.future = future
        self._keeps_failures = keeps_failures
        self._results: list[Any] = [None] * count
        self._left = count + is_open
        """Calls without an outcome; one more while it is open."""
        self._failure: Exception | None = None
        self._failed_at: float = inf
        self._failed: list[tuple[int, int]] = []
        """Items that failed, as place and number of consecutive ones, in the order of their outcomes."""

    def done(self) -> bool:
        """Whether the future is done or cancelled."""
        return self.future.done()

    def extend(self, count: int) -> int:
        """Adds calls. Returns the place of the first one. Only while it is open."""
        at = len(self._results)
        self._results += [None] * count
        self._left += count
        return at

    def close(self, error: Exception | None = None) -> None:
        """No more calls follow; `error`: the reason, if any, raised after the failure of a call."""
        if error is not None and self._failure is None:
            self._failure, self._failed = error, []
        self._settled(1)

    def put(self, at: int, results: list[Any]) -> None:
        """Sets results of consecutive calls."""
        self._results[at : at + len(results)] = results
        self._settled(len(results))

    def fail(self, at: int, failures: Sequence[Exception]) -> None:
        """Sets failures of consecutive calls."""
        if self._keeps_failures:
            self._results[at : at + len(failures)] = failures
        else:
            if at < self._failed_at:
                self._failed_at, self._failure = at, failures[0]
            self._failed.append((at, len(failures)))
        self._settled(len(failures))

    def _settled(self, count: int) -> None:
        self._left -= count
        if self._left or self.future.done():
            return
        if self._failure is not None:
            self._tell_which(self._failure)
            self.future.set_exception(self._failure)
        else:
            self.future.set_result(self._results)
        self._results = []

    def _tell_which(self, failure: Exception) -> None:
        if not self._failed:
            return
        places = tuple(place for at, many in sorted(self._failed) for place in range(at, at + many))
        if isinstance(failure, SlotmeshError):
            failure.of_map(places, len(self._results))
        else:
            failure.add_note(items_failed(places, len(self._results)))


Add = Callable[[CallSpec, list[bytes], Gather, int], object]
"""Makes calls of a map whose places are taken: the first one at this place of the gather."""


class LinePlace:
    """A place in the line of a lane."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once nothing is in front."""


class MapFeeds:
    """Maps with more calls than the client may hold, and calls of lanes that wait for room (`send`).

    Invariants: the iterables of a map are read as far as there is room for calls, and one piece more. A map's calls are
    made in order. In a lane, later calls are made behind a map, or a call that waits: each has its place in the line of
    the lane until it is made, and none can pass it.
    """

    def __init__(self, endpoint: str, add: Add, closed: Failure) -> None:
        """`closed`: the failure of calls that were not made when the client is closed."""
        self._endpoint = endpoint
        self._add = add
        self._closed = closed
        self._lines: dict[CallQueue[Any], deque[LinePlace]] = {}
        """The line of each queue, in order. No entry for an empty one."""
        self._tasks: set[asyncio.Task[None]] = set()

    def is_waiting(self, queue: CallQueue[Any]) -> bool:
        """Whether the queue's next call must wait behind others."""
        return queue in self._lines

    def join(self, queue: CallQueue[Any]) -> LinePlace:
        """Takes the last place in the queue's line; call `leave` once its calls are made, or never will be."""
        place = LinePlace()
        line = self._lines.setdefault(queue, deque())
        line.append(place)
        if len(line) == 1:
            place.turn.set_result(None)
        return place

    def leave(self, queue: CallQueue[Any], place: LinePlace) -> None:
        """Lets the next one in the line proceed."""
        line = self._lines[queue]
        line.remove(place)
        if not line:
            del self._lines[queue]
        elif not line[0].turn.done():
            line[0].turn.set_result(None)

    def start(
        self, spec: CallSpec, share: BufferShare, payloads: list[bytes], rest: Iterator[Piece], gather: Gather
    ) -> None:
        """Makes calls with these payloads, and then with the rest. The gather is open, and is closed after the last."""
        place = self.join(spec.queue)
        feed = self._feed(spec, share, payloads, rest, gather, place)
        task = asyncio.get_running_loop().create_task(feed, name=f"slotmesh-client-map-{self._endpoint}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, spec.queue, place))
        gather.future.add_done_callback(lambda _: task.cancel())

    async def end(self, within_s: float) -> None:
        """Waits until all calls are made, at most `within_s` seconds; the others fail."""
        feeds = set(self._tasks)
        if feeds:
            _, late = await asyncio.wait(feeds, timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, queue: CallQueue[Any], place: LinePlace, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.leave(queue, place)

    async def _feed(
        self,
        spec: CallSpec,
        share: BufferShare,
        payloads: list[bytes],
        rest: Iterator[Piece],
        gather: Gather,
        place: LinePlace,
    ) -> None:
        error: Exception | None = to_exception(self._closed, endpoint=spec.endpoint, method=spec.method)
        try:
            await place.turn
            while payloads:
                await share.room(len(payloads[0]))
                count = share.take_front(payloads)
                self._add(spec, payloads[:count], gather, gather.extend(count))
                payloads = payloads[count:]
                if not payloads:
                    payloads, _ = next(rest, ([], 0))
            error = None
        except Exception as problem:  # noqa: BLE001 - the application's iterables raise it: it is the map's outcome
            error = problem
        finally:
            gather.close(error)
