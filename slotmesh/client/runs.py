"""Calls in company: runs that wait to be sent, parts that were sent, and the queues that keep their order.

Purpose: the data of the client's book-keeping. Columnar: lists of payloads and of sinks, no object a call. Pure: a sink
is an asyncio future, of which only `done()` is asked here.
Invariants: calls of one queue leave in the order in which they were made; a run takes more calls only until its first
one has left.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from slotmesh.client.gather import Gather
    from slotmesh.client.spec import CallSpec

_is_done = methodcaller("done")


class _Nobody:
    """Stands where the future of a call was that somebody took back: whatever comes is unwanted."""

    __slots__ = ()

    @staticmethod
    def done() -> bool:
        return True


_NOBODY: Final = _Nobody()


class CallQueue:
    """Calls that keep their order: those of one ordering key, or of one unkeyed method."""

    __slots__ = ("__weakref__", "_on_idle", "_unanswered", "runs", "tail")

    def __init__(self) -> None:
        self.runs: deque[WaitingRun] = deque()
        """What waits to be sent."""
        self.tail: WaitingRun | None = None
        """The last of `runs`, while it is open for more calls."""
        self._unanswered = 0
        self._on_idle: list[Callable[[], object]] = []

    @property
    def idle(self) -> bool:
        """Whether every call has its outcome."""
        return not self._unanswered and not self.runs

    def call_when_idle(self, function: Callable[[], object]) -> None:
        """Calls `function` once, when every call has its outcome; at once where that is so."""
        self._on_idle.append(function)
        self.tell_if_idle()

    def sent(self, calls: int) -> None:
        """That many calls have left."""
        self._unanswered += calls

    def settled(self, calls: int) -> None:
        """That many calls that had left have their outcome."""
        self._unanswered -= calls
        if self._on_idle:
            self.tell_if_idle()

    def tell_if_idle(self) -> None:
        """Looks whether someone waits for this moment."""
        if self._on_idle and self.idle:
            waiting, self._on_idle = self._on_idle, []
            for function in waiting:
                function()


class WaitingRun:
    """Neighbours in a queue that share their spec."""

    __slots__ = ("_at", "gather", "offset", "payloads", "sinks", "spec")

    def __init__(
        self, spec: CallSpec, payloads: list[bytes], sinks: list[Any], gather: Gather | None = None, offset: int = 0
    ) -> None:
        self.spec = spec
        self.payloads = payloads
        self.sinks = sinks
        """One for each payload; empty where `gather` takes all outcomes."""
        self.gather = gather
        self.offset = offset
        """Place of the first payload in `gather`."""
        self._at = 0

    def __len__(self) -> int:
        """Calls that have not left."""
        return len(self.payloads) - self._at

    def sizes(self, count: int) -> list[int]:
        """Payload bytes of the next calls, at most `count` of them, without those that nobody waits for any more."""
        if self.gather is not None:
            if self.gather.done():
                self._at = len(self.payloads)
        elif any(map(_is_done, self.sinks[self._at : self._at + count])):
            self._drop_done()
        return list(map(len, self.payloads[self._at : self._at + count]))

    def split(self, count: int, nbytes: int) -> Part:
        """Takes so many calls, of so many payload bytes, off the front."""
        start, stop = self._at, self._at + count
        self._at = stop
        payloads, sinks = self.payloads[start:stop], self.sinks[start:stop]
        return Part(self.spec, payloads, nbytes, sinks, self.gather, self.offset + start)

    def _drop_done(self) -> None:
        wanted = [not sink.done() for sink in self.sinks[self._at :]]
        self.payloads[:] = compress(self.payloads[self._at :], wanted)
        self.sinks[:] = compress(self.sinks[self._at :], wanted)
        self._at = 0


class Part:
    """Calls that left together, as one batch of a frame. Lives until each has its outcome.

    Keeps their payloads, as a session sends again what its router has not answered.
    """

    __slots__ = (
        "_taken_back",
        "answered",
        "count",
        "first_id",
        "gather",
        "left",
        "nbytes",
        "offset",
        "payloads",
        "sent_at",
        "sinks",
        "spec",
    )

    def __init__(
        self,
        spec: CallSpec,
        payloads: list[bytes],
        nbytes: int,
        sinks: list[Any],
        gather: Gather | None = None,
        offset: int = 0,
    ) -> None:
        self.spec = spec
        self.payloads = payloads
        """Of each call; empty where it has its outcome, unless all have."""
        self.nbytes = nbytes
        """Payload bytes of those without an outcome."""
        self.sinks = sinks
        """One for each call; empty where `gather` takes all outcomes."""
        self.gather = gather
        self.offset = offset
        """Place of the first call in `gather`."""
        self.count = len(payloads)
        """Calls in all."""
        self.left = self.count
        """Calls without an outcome."""
        self.first_id = 0
        """Set when it leaves; the others follow one by one. 0: never left."""
        self.sent_at = 0.0
        """When it left for the first time, seconds of the event loop's clock."""
        self.answered: bytearray | None = None
        """1 for each call that has its outcome; None while none has."""
        self._taken_back = False

    def open_spans(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Neighbours without an outcome, from the place `start` on: the place of the first, and how many."""
        answered, count = self.answered, self.count
        if not self.left:
            return  # those that were answered last are not marked
        if answered is None:
            if start < count:
                yield start, count - start
            return
        at = answered.find(0, start)
        while at >= 0:
            end = answered.find(1, at)
            yield at, (count if end < 0 else end) - at
            at = -1 if end < 0 else answered.find(0, end)

    def unwanted(self) -> list[int]:
        """Places of the calls that have no outcome, and that nobody waits for any more."""
        places = [place for at, many in self.open_spans() for place in range(at, at + many)]
        if self.gather is not None:
            return places if self.gather.done() else []
        return [place for place in places if self.sinks[place].done()]

    def untold(self) -> list[int]:
        """Places of the calls that have no outcome, and that `take_unwanted` has not told."""
        if self._taken_back:
            return []
        places = [place for at, many in self.open_spans() for place in range(at, at + many)]
        return places if self.gather is not None else [each for each in places if self.sinks[each] is not _NOBODY]

    def take_unwanted(self) -> list[int]:
        """As `unwanted`, but tells each once."""
        answered, sinks = self.answered, self.sinks
        if self.gather is not None:
            if self._taken_back or not self.gather.done():
                return []
            self._taken_back = True
            return [at for at in range(self.count) if answered is None or not answered[at]]
        if answered is None:
            if not any(map(_is_done, sinks)):
                return []
            unwanted = [at for at, sink in enumerate(sinks) if sink.done() and sink is not _NOBODY]
        else:
            unwanted = [at for at, sink in enumerate(sinks) if not answered[at] and sink.done() and sink is not _NOBODY]
        for at in unwanted:
            sinks[at] = _NOBODY
        return unwanted
