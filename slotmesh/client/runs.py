"""Calls in company: runs that wait to be sent, parts that were sent, and the queues that keep their order.

Purpose: the data of the client's book-keeping. Columnar: lists of payloads and of sinks, no object a call. Pure: a sink
is an asyncio future, of which only `done()` is asked here.
Invariants: calls of one queue leave in the order in which they were made; a run takes more calls only until its first
one has left. Where many lanes have few calls each, these wait together in one run, a *column*: its `specs` say whose
each is, and share everything but their ordering key. What a lane has besides waits until that column has left.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress, groupby
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from slotmesh.client.gather import Gather
    from slotmesh.client.groups import LaneGroups
    from slotmesh.client.spec import CallSpec
    from slotmesh.client.stops import LaneStop
    from slotmesh.v1 import call_pb2, router_service_pb2

IsOut = Callable[["CallSpec", bytes, Any], bool]
"""Whether a waiting call is to be taken out: its spec, its payload, and its sink or gather. Asked in order."""

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

    __slots__ = ("__weakref__", "_on_idle", "column", "groups", "in_column", "runs", "stop", "tail", "unanswered")

    def __init__(self, groups: LaneGroups | None = None) -> None:
        """`groups`: those of the lanes beside this one; None for a queue that is no lane's."""
        self.groups = groups
        self.runs: deque[WaitingRun] = deque()
        """What waits to be sent."""
        self.tail: WaitingRun | None = None
        """The last of `runs`, while it is open for more calls."""
        self.column: WaitingRun | None = None
        """The column that took calls of this queue last. They have left when it is empty."""
        self.in_column = 0
        """How many it took."""
        self.stop: LaneStop | None = None
        """Of a lane that has calls that stop at failures."""
        self.unanswered = 0
        """Calls that left or wait in a column, and have no outcome."""
        self._on_idle: list[Callable[[], object]] = []

    @property
    def idle(self) -> bool:
        """Whether every call has its outcome."""
        return not self.unanswered and not self.runs

    def call_when_idle(self, function: Callable[[], object]) -> None:
        """Calls `function` once, when every call has its outcome; at once where that is so."""
        self._on_idle.append(function)
        self.tell_if_idle()

    def settled(self, calls: int) -> None:
        """That many calls that had left have their outcome."""
        self.unanswered -= calls
        if self._on_idle:
            self.tell_if_idle()

    def tell_if_idle(self) -> None:
        """Looks whether someone waits for this moment."""
        if self._on_idle and self.idle:
            waiting, self._on_idle = self._on_idle, []
            for function in waiting:
                function()


class WaitingRun:
    """Neighbours in a queue that share their spec, or a column. Empty once all have left."""

    __slots__ = ("_at", "followers", "gather", "made_at", "offset", "payloads", "sinks", "spec", "specs")

    def __init__(
        self,
        spec: CallSpec,
        payloads: list[bytes],
        sinks: list[Any],
        gather: Gather | None = None,
        offset: int = 0,
        specs: list[CallSpec] | None = None,
    ) -> None:
        self.spec = spec
        self.payloads = payloads
        self.sinks = sinks
        """One for each payload; empty where `gather` takes all outcomes."""
        self.gather = gather
        self.offset = offset
        """Place of the first payload in `gather`."""
        self.specs = specs
        """Of a column: one for each payload."""
        self.followers: list[CallQueue] = []
        """Of a column: queues that get their turn when it has left."""
        self.made_at: float | None = None
        """When its last call was made, or a little later, seconds of the event loop's clock; None while it is new."""
        self._at = 0

    def __len__(self) -> int:
        """Calls that have not left."""
        return len(self.payloads) - self._at

    def is_overdue(self, now: float) -> bool:
        """Whether the timeout of each of its calls has passed."""
        timeout_s = self.spec.options.timeout_s
        return timeout_s is not None and self.made_at is not None and self.made_at + timeout_s <= now

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
        payloads, sinks, specs = self.payloads, self.sinks, self.specs
        if stop == len(payloads):
            self.payloads, self.sinks, self._at = [], [], 0
        else:
            self._at = stop
        if count < len(payloads):
            payloads, sinks = payloads[start:stop], sinks[start:stop]
            specs = specs and specs[start:stop]
        if specs is None:
            part = Part(self.spec, payloads, nbytes, sinks, self.gather, self.offset + start)
        else:
            spec = specs[0]
            if specs[-1] is spec and specs.count(spec) == count:
                specs = None  # one lane alone
            part = Part(spec, payloads, nbytes, sinks, specs=specs)
        part.made_at = self.made_at
        return part

    def cancelled_specs(self) -> list[CallSpec]:
        """Specs of the calls that nobody waits for any more, each once."""
        if self.gather is not None:
            return [self.spec] if self and self.gather.done() else []
        sinks = self.sinks[self._at :]
        if not any(map(_is_done, sinks)):
            return []
        if self.specs is None:
            return [self.spec]
        return list(dict.fromkeys(compress(self.specs[self._at :], map(_is_done, sinks))))

    def take_out(self, is_out: IsOut) -> tuple[list[WaitingRun], list[Part]]:
        """What stays of the run, in order, and what does not wait any more, one part a call or more."""
        payloads, sinks = self.payloads[self._at :], self.sinks[self._at :]
        gather, offset = self.gather, self.offset + self._at
        specs = self.specs and self.specs[self._at :]
        out = [
            is_out(specs[at] if specs else self.spec, payload, gather or sinks[at])
            for at, payload in enumerate(payloads)
        ]
        if not any(out):
            return [self], []
        if gather is not None:
            stretches = [
                (is_taken, [at for at, _ in each]) for is_taken, each in groupby(enumerate(out), itemgetter(1))
            ]
            slices = [(is_taken, places[0], places[-1] + 1) for is_taken, places in stretches]
            stay = [
                WaitingRun(self.spec, payloads[start:stop], [], gather, offset + start)
                for is_taken, start, stop in slices
                if not is_taken
            ]
            for run in stay:
                run.made_at = self.made_at
            return stay, [
                Part(self.spec, payloads[start:stop], sum(map(len, payloads[start:stop])), [], gather, offset + start)
                for is_taken, start, stop in slices
                if is_taken
            ]
        parts = [
            Part(specs[at] if specs else self.spec, [payloads[at]], len(payloads[at]), [sinks[at]])
            for at, is_taken in enumerate(out)
            if is_taken
        ]
        wanted = [not is_taken for is_taken in out]
        if specs:
            self.specs = list(compress(specs, wanted))
        self.payloads, self.sinks, self._at = list(compress(payloads, wanted)), list(compress(sinks, wanted)), 0
        return [self], parts

    def _drop_done(self) -> None:
        wanted = [not sink.done() for sink in self.sinks[self._at :]]
        if self.specs is not None:
            for spec, is_wanted in zip(self.specs[self._at :], wanted, strict=True):
                if not is_wanted:
                    spec.queue.settled(1)
            self.specs[:] = compress(self.specs[self._at :], wanted)
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
        "made_at",
        "nbytes",
        "offset",
        "payloads",
        "roster",
        "sent_at",
        "sinks",
        "spec",
        "specs",
    )

    def __init__(
        self,
        spec: CallSpec,
        payloads: list[bytes],
        nbytes: int,
        sinks: list[Any],
        gather: Gather | None = None,
        offset: int = 0,
        specs: list[CallSpec] | None = None,
    ) -> None:
        self.spec = spec
        """Of the first call, and of all where there are no `specs`."""
        self.specs = specs
        """One for each call, where calls of several lanes left together. They differ in their lane alone."""
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
        self.made_at: float | None = None
        """When its calls were made, as far as that was a while before they left; None where it was not."""
        self.sent_at = 0.0
        """When it left for the first time, seconds of the event loop's clock."""
        self.roster: router_service_pb2.RosterVersion | None = None
        """The newest that was acknowledged by then."""
        self.answered: bytearray | None = None
        """1 for each call that has its outcome; None while none has."""
        self._taken_back = False

    @property
    def since(self) -> float:
        """From when on its timeout counts, seconds of the event loop's clock. Only once it has left."""
        return self.sent_at if self.made_at is None else self.made_at

    @property
    def wire(self) -> call_pb2.CallOptions:
        """The options that all of its calls share: without ordering key where that differs."""
        group = self.spec.group
        return self.spec.wire if self.specs is None or group is None else group.wire

    def settled(self, at: int, count: int) -> None:
        """Tells the queues of neighbours that these have their outcome. Not of calls that never were in the outbox."""
        if self.specs is None:
            self.spec.queue.settled(count)
            return
        for spec in self.specs[at : at + count]:
            spec.queue.settled(1)

    def is_after_failure(self, place: int) -> bool:
        """Whether the call's lane stops at failures, and a call before it has failed."""
        spec = self.spec if self.specs is None else self.specs[place]
        stop = spec.queue.stop
        return stop is not None and stop.is_after_failure(spec.stop_generation, self.first_id + place)

    def is_wanted(self, place: int) -> bool:
        """Whether the call has no outcome, and somebody waits for it."""
        if not self.left or (self.answered is not None and self.answered[place]):
            return False
        waiting: Any = self.gather or self.sinks[place]
        return not waiting.done()

    def settled_places(self, places: list[int]) -> None:
        """As `settled`, for calls at these places."""
        if self.specs is None:
            self.spec.queue.settled(len(places))
            return
        for at in places:
            self.specs[at].queue.settled(1)

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

    def forsake(self) -> None:
        """Nobody waits for any of the calls any more, and nobody has to be told so."""
        self.sinks, self.gather = [_NOBODY] * self.count, None

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
