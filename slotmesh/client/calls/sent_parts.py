"""Calls that left together, as one batch of a frame, and the delivery of their outcomes.

Payloads become decoded results of futures, failures typed exceptions, other ends None.
Columnar: lists of payloads and of sinks, no object for each call. Calls that fail with one failure get different retry
delays, so that they are not retried together.
Invariants: a future that is done (because it was cancelled) is not changed. If one failure meets many calls whose
futures were dropped, asyncio reports one of them as never retrieved, not all.
Owner: the endpoint's `PendingCalls`, from when they leave until each has its outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import methodcaller
from typing import Any, Final

from slotmesh.client.calls.call_spec import CallSpec, too_large
from slotmesh.client.calls.maps import Gather
from slotmesh.codec import OCTET_STREAM, DecodeError
from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.status import to_exception
from slotmesh.v1 import call_pb2, router_service_pb2

is_done = methodcaller("done")


class _Nobody:
    """Replaces the future of a call that was cancelled: its outcome is dropped."""

    __slots__ = ()

    @staticmethod
    def done() -> bool:
        return True


_NOBODY: Final = _Nobody()


class SentPart:
    """Calls that left together, as one batch of a frame. Kept until each has its outcome.

    Keeps their payloads, as a session sends again what its router has not answered.
    """

    __slots__ = (
        "_taken_back",
        "answered",
        "count",
        "first",
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
        """Of the first call, and of all if there are no `specs`."""
        self.specs = specs
        """One for each call, if calls of several lanes left together. They differ only in their lane."""
        self.payloads = payloads
        """Of each call; empty if it has its outcome, unless all have."""
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
        self.first = 0
        """Set when it leaves; the others follow one by one. 0: never left."""
        self.made_at: float | None = None
        """When its calls were made, if that was a while before they left; else None."""
        self.sent_at = 0.0
        """When it left for the first time, seconds of the event loop's clock."""
        self.roster: router_service_pb2.RosterVersion | None = None
        """The newest version that was acknowledged when it left."""
        self.answered: bytearray | None = None
        """1 for each call that has its outcome; None while none has."""
        self._taken_back = False

    @property
    def since(self) -> float:
        """When its timeout starts, seconds of the event loop's clock. Only once it has left."""
        return self.sent_at if self.made_at is None else self.made_at

    @property
    def wire(self) -> call_pb2.CallOptions:
        """The options that all of its calls share; without ordering key if that differs."""
        group = self.spec.group
        return self.spec.wire if self.specs is None or group is None else group.wire

    def settled(self, at: int, count: int) -> None:
        """Reports outcomes of consecutive calls to their queues. Not for calls that never were in an outbox."""
        if self.specs is None:
            self.spec.queue.settled(count)
            return
        for spec in self.specs[at : at + count]:
            spec.queue.settled(1)

    def is_after_failure(self, place: int) -> bool:
        """Whether the call's lane stops at failures, and a call before it has failed."""
        spec = self.spec if self.specs is None else self.specs[place]
        stop = spec.queue.stop
        return stop is not None and stop.is_after_failure(spec.stop_generation, self.first + place)

    def is_wanted(self, place: int) -> bool:
        """Whether the call has no outcome, and is not cancelled."""
        if not self.left or (self.answered is not None and self.answered[place]):
            return False
        waiting: Any = self.gather or self.sinks[place]
        return not waiting.done()

    @property
    def has_wanted(self) -> bool:
        """Whether a caller waits for one of its calls."""
        if self.gather is not None:
            return self.left > 0 and not self.gather.done()
        return any(map(self.is_wanted, range(self.count)))

    def settled_places(self, places: list[int]) -> None:
        """As `settled`, for calls at these places."""
        if self.specs is None:
            self.spec.queue.settled(len(places))
            return
        for at in places:
            self.specs[at].queue.settled(1)

    def open_spans(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Consecutive calls without an outcome, from the place `start` on: the place of the first, and their number."""
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
        """Drops all calls, without cancels to the router."""
        self.sinks, self.gather = [_NOBODY] * self.count, None

    def unwanted(self) -> list[int]:
        """Places of the calls that have no outcome, and were cancelled."""
        places = [place for at, many in self.open_spans() for place in range(at, at + many)]
        if self.gather is not None:
            return places if self.gather.done() else []
        return [place for place in places if self.sinks[place].done()]

    def untaken(self) -> list[int]:
        """Places of the calls that have no outcome, and that `take_unwanted` has not returned."""
        if self._taken_back:
            return []
        places = [place for at, many in self.open_spans() for place in range(at, at + many)]
        return places if self.gather is not None else [each for each in places if self.sinks[each] is not _NOBODY]

    def take_unwanted(self) -> list[int]:
        """As `unwanted`, but returns each once."""
        answered, sinks = self.answered, self.sinks
        if self.gather is not None:
            if self._taken_back or not self.gather.done():
                return []
            self._taken_back = True
            return [at for at in range(self.count) if answered is None or not answered[at]]
        if answered is None:
            if not any(map(is_done, sinks)):
                return []
            unwanted = [at for at, sink in enumerate(sinks) if sink.done() and sink is not _NOBODY]
        else:
            unwanted = [at for at, sink in enumerate(sinks) if not answered[at] and sink.done() and sink is not _NOBODY]
        for at in unwanted:
            sinks[at] = _NOBODY
        return unwanted


RETRY_SPREAD: Final = 0.2
"""Share, up and down, by which the retry delays of calls with the same failure differ."""


def deliver(part: SentPart, at: int, payloads: list[bytes], content_type: str) -> None:
    """Delivers results of consecutive calls of a part, the first of them at `at`."""
    spec = part.spec
    if not spec.options.reply:
        finish(part, at, len(payloads))
        return
    if (content_type or OCTET_STREAM) != spec.content_type:
        fail(part, at, len(payloads), other_content_type(part, content_type))
        return
    if spec.streaming:  # of a method that returns: its result is the only value
        for sink, payload in zip(_taken(part, at, len(payloads)), payloads, strict=True):
            if not sink.done():
                sink.put_last(payload)
        return
    decode, gather = spec.decode, part.gather
    if gather is not None:
        if gather.done():
            return
        if decode is None:
            gather.put(part.offset + at, payloads)
        else:
            _deliver_to_map(part, gather, decode, at, payloads)
        return
    for sink, payload in zip(_taken(part, at, len(payloads)), payloads, strict=True):
        _resolve(sink, payload, decode)


def deliver_scattered(part: SentPart, places: list[int], payloads: list[bytes], content_type: str) -> None:
    """Delivers results of calls of a part, at these places."""
    spec, sinks = part.spec, part.sinks
    is_plain = spec.options.reply and not spec.streaming and (content_type or OCTET_STREAM) == spec.content_type
    if part.gather is not None or not is_plain:
        for at, payload in zip(places, payloads, strict=True):
            deliver(part, at, [payload], content_type)
        return
    decode = spec.decode
    for at, payload in zip(places, payloads, strict=True):
        sink, sinks[at] = sinks[at], None
        _resolve(sink, payload, decode)


def finish(part: SentPart, at: int, count: int) -> None:
    """Ends consecutive calls of a part that have no results of their own."""
    if part.gather is not None:
        if not part.gather.done():
            part.gather.put(part.offset + at, [None] * count)
        return
    for sink in _taken(part, at, count):
        if not sink.done():
            sink.set_result(None)


def fail(part: SentPart, at: int, count: int, failure: Failure, *, is_repeated: bool = False) -> None:
    """Fails consecutive calls of a part. `is_repeated`: other calls got this failure before."""
    spread = RETRY_SPREAD if count > 1 else 0.0
    if part.spec.stop_generation:
        _stop_lanes(part, at, count, failure)
    if part.gather is not None:
        if not part.gather.done():
            errors = [_exception(part, index, failure, spread) for index in range(at, at + count)]
            part.gather.fail(part.offset + at, errors)
        return
    for index, sink in enumerate(_taken(part, at, count), at):
        if not sink.done():
            sink.set_exception(_exception(part, index, failure, spread))
            if is_repeated:
                sink.exception()  # marks it as retrieved for asyncio
            is_repeated = True


def refuse(part: SentPart, limit: int | None = None) -> None:
    """Fails calls that were removed from the outbox unsent: their payload is over the limit, or their lane stopped."""
    stop = part.spec.queue.stop
    for at, payload in enumerate(part.payloads):
        if limit is not None and len(payload) > limit:
            fail(part, at, 1, too_large(len(payload), limit), is_repeated=at > 0)
        elif stop is not None:
            fail(part, at, 1, stop.refusal(), is_repeated=at > 0)
    part.settled(0, part.count)


def refuse_sent(part: SentPart, place: int) -> None:
    """As `refuse`, for a call that was sent before and is not sent again."""
    spec = part.spec if part.specs is None else part.specs[place]
    if spec.queue.stop is not None:
        fail(part, place, 1, spec.queue.stop.refusal(was_sent=True))


def _stop_lanes(part: SentPart, at: int, count: int, failure: Failure) -> None:
    """Records the failure in the lanes of these calls: of each lane, the first call that failed."""
    specs = [part.spec] * count if part.specs is None else part.specs[at : at + count]
    recorded: set[CallSpec] = set()
    for index, spec in enumerate(specs, at):
        if spec not in recorded and spec.queue.stop is not None:
            recorded.add(spec)
            call_id = part.first + index if part.first else 0
            spec.queue.stop.fail(spec.queue, spec.stop_generation, call_id, failure)


def give_up(part: SentPart, failure: Failure) -> None:
    """Fails all calls of a part that have no outcome. Later outcomes are dropped."""
    for index, (at, count) in enumerate(part.open_spans()):
        fail(part, at, count, failure, is_repeated=index > 0)
    part.forsake()


def _resolve(sink: Any, payload: bytes, decode: Callable[[bytes], Any] | None) -> None:
    """Sets the result of one future."""
    if sink.done():
        return
    if decode is None:
        sink.set_result(payload)
        return
    try:
        result = decode(payload)
    except DecodeError as error:
        sink.set_exception(error)
    else:
        sink.set_result(result)


def _taken(part: SentPart, at: int, count: int) -> list[Any]:
    """The futures of these calls; the part drops them, so that results do not live as long as its slowest call."""
    sinks = part.sinks
    if count == part.count:
        return sinks
    taken = sinks[at : at + count]
    sinks[at : at + count] = [None] * count
    return taken


def _deliver_to_map(
    part: SentPart, gather: Gather, decode: Callable[[bytes], Any], at: int, payloads: list[bytes]
) -> None:
    try:
        gather.put(part.offset + at, part.spec.decode_each(payloads))
        return
    except DecodeError:
        pass  # some cannot be decoded: the loop finds which
    for place, payload in enumerate(payloads, part.offset + at):
        try:
            gather.put(place, [decode(payload)])
        except DecodeError as error:
            gather.fail(place, [error])


def _exception(part: SentPart, index: int, failure: Failure, spread: float) -> SlotmeshError:
    spec = part.spec
    if spread and failure.retry_delay_s:
        failure = replace(failure, retry_delay_s=failure.retry_delay_s * random.uniform(1 - spread, 1 + spread))  # noqa: S311 - spreads load, guards nothing
    return to_exception(
        failure,
        endpoint=spec.endpoint,
        method=spec.method,
        call_id=part.first + index if part.first else 0,
    )


def other_content_type(part: SentPart, content_type: str) -> Failure:
    """The failure of a call whose result has another content type than its call."""
    return Failure(
        reason=Reason.INTERNAL,
        message=f"the result is encoded as {content_type}, the call was as {part.spec.content_type}",
        executed=Executed.YES,
    )
