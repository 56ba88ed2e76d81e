"""The outcomes that arrive on one stream, and their delivery to the calls.

Results of calls without streaming arrive in batches, the payloads of large ones before that in chunks. Values of
handlers that yield arrive one by one; their delivery is acknowledged to the router in groups, so that handlers
continue.
Invariants: an outcome for a call that already has one, or that was cancelled, changes nothing. A rejection applies to
this sending only: if an earlier router had the call, too, it is unknown whether it was executed.
Owner: the `RouterLink` of one connection. Results whose delivery a broken connection interrupted arrive again on the
next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat, zip_longest
from operator import eq, sub
from typing import Any, Final, TypeVar

from slotmesh.calls.id_ranges import merged
from slotmesh.client.calls.call_spec import EXECUTED_PAYLOADS, CallSpec
from slotmesh.client.calls.sent_parts import SentPart, deliver, deliver_scattered, fail, finish, other_content_type
from slotmesh.client.calls.values import CallValues, ReadValues
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.codec import OCTET_STREAM
from slotmesh.convert.batches import block_problem, ids_of_results, list_of, ranges_from_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.status import from_wire, to_exception
from slotmesh.streams.arriving_payloads import ArrivingPayloads, BadChunk, JoinedAssembly
from slotmesh.v1 import call_pb2, router_service_pb2

PAYLOAD_LOST: Final = Failure(
    reason=Reason.INTERNAL,
    message="the result was to come in chunks, and they are not complete",
    executed=Executed.YES,
)

NO_RESULT: Final = Failure(
    reason=Reason.INTERNAL,
    message="the router reported the end of the call, and no result",
    executed=Executed.YES,
)


ItemT = TypeVar("ItemT")


def are_scattered(ids: Sequence[int]) -> bool:
    """Whether most of these ids are not consecutive, as with many lanes or several replicas: slices gain nothing then.

    Usually all are consecutive, which a constant-time check finds.
    """
    count = len(ids)
    if count < 2 or (ids[-1] - ids[0] == count - 1 and ids[1] - ids[0] == 1 and ids[count // 2] - ids[0] == count // 2):
        return False
    following: int = sum(map(eq, map(sub, ids[1:], ids), repeat(1)))
    return following * 2 < count - 1


def ascending(ids: Sequence[int], items: list[ItemT]) -> tuple[list[int], list[ItemT]]:
    """Both in the order of the ids. Of a duplicate id, the first one stays first."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return [ids[at] for at in order], [items[at] for at in order]


def backends_of(batch: call_pb2.ResultBatch, count: int) -> list[str]:
    """The backend that executed each of `count` payloads (feature `executors`); empty if the router does not report it.

    Raises:
        ValueError: the fields contradict each other or the number of payloads.
    """
    starts, names = batch.executor_starts[:], batch.backends[:]
    if not starts and not names:
        return []
    if len(starts) != len(names) or starts[0] or sorted({*starts}) != starts or starts[-1] >= count:
        raise ValueError(f"executors of {count} payloads start at {starts[:8]}, and have {len(names)} backends")
    found: list[str] = []
    for name, start, end in zip(names, starts, [*starts[1:], count], strict=True):
        found.extend(repeat(name, end - start))
    return found


def as_wanted(spec: CallSpec, payloads: list[bytes], backends: list[str], start: int, end: int) -> list[Any]:
    """These payloads in the form that the caller of `spec` wants: each with its backend, or as they are."""
    if spec.wanted is not EXECUTED_PAYLOADS:
        return payloads[start:end]
    return list(zip_longest(payloads[start:end], backends[start:end], fillvalue=""))


class ArrivingValues(ReadValues):
    """The values of handlers that yield, on one stream; acknowledges delivered ones to the router in groups.

    Invariants: a call stays unanswered until it ends, whatever values arrive. Values for a call that has ended, was
    cancelled, or takes one result, are ignored. Such calls, and this state, do not outlive the stream.
    """

    __slots__ = ("_pending",)

    def __init__(self, pending: PendingCalls, wake: Callable[[], None]) -> None:
        """`wake` is called when `take_frame` may have a frame."""
        super().__init__(wake)
        self._pending = pending

    def accept(self, ids: Sequence[int], payloads: list[bytes], content_type: str) -> None:
        """The next values of these calls; an id appears once for each value."""
        before, values = 0, None
        for call_id, payload in zip(ids, payloads, strict=True):
            if call_id != before:
                before, values = call_id, self._values_of(call_id, content_type)
            if values is not None:
                values.put(payload, call_id, self)

    def lose(self, call_id: int, failure: Failure) -> None:
        """A value of this call was lost, so the call fails."""
        found = self._find(call_id)
        if found is not None:
            _fail(*found, call_id, failure)

    def _values_of(self, call_id: int, content_type: str) -> CallValues | None:
        found = self._find(call_id)
        if found is None:
            return None
        part, values = found
        if (content_type or OCTET_STREAM) != part.spec.content_type:
            _fail(part, values, call_id, other_content_type(part, content_type))
            return None
        return values

    def _find(self, call_id: int) -> tuple[SentPart, CallValues] | None:
        """The call's values, unless the call has ended or was cancelled."""
        found = self._pending.find(call_id)
        if found is None or not found[0].spec.streaming:
            return None
        part, place = found
        values = part.sinks[place]
        return (part, values) if isinstance(values, CallValues) and not values.done() else None


def _fail(part: SentPart, values: CallValues, call_id: int, failure: Failure) -> None:
    """Fails a running call for its caller: its sink is `done`, so the next look cancels it at the router."""
    spec = part.spec
    values.set_exception(to_exception(failure, endpoint=spec.endpoint, method=spec.method, call_id=call_id))


OnUnstarted = Callable[[CallSpec, bytes, Any, float], None]
"""Takes calls that are to be sent again elsewhere: specification, payload, sink, and when the call was made."""

_BEGUN_ELSEWHERE = frozenset({Reason.SESSION_FENCED, Reason.STALE_TABLE})
"""Reasons with which the session's previous router rejects calls that it cannot start any more."""


class IncomingResults:
    """Delivers the outcomes on one stream to the calls."""

    def __init__(self, pending: PendingCalls, values: ArrivingValues, on_unstarted: OnUnstarted) -> None:
        """`values`: takes the values of handlers that yield."""
        self._pending = pending
        self._values = values
        self._on_unstarted = on_unstarted
        self._chunks = ArrivingPayloads(partial(JoinedAssembly, least=1))
        """Results that are too large for their frame."""
        self._first_new_id = pending.next_id
        self.session_moved = False
        """The session continues on another stream, on which calls are sent again that do not start here."""
        self.answered = 0
        """Calls that got their outcome on this stream."""

    def accept_chunk(self, chunk: call_pb2.Chunk, data: bytes) -> None:
        """Adds a chunk with this data. If it does not fit, the payload is dropped, and its call fails in the end."""
        call_id = chunk.call_id
        if not self._is_wanted(call_id):
            self._chunks.drop([call_id])
            return
        try:
            self._chunks.add(call_id, chunk.offset, chunk.total, data)
        except BadChunk:
            self._chunks.drop([call_id])

    def accept(self, frame: call_pb2.ResultFrame, cut: Sequence[bytes] = ()) -> None:
        """Processes the next frame of outcomes. `cut`: payloads of its only batch, if they are not in it."""
        pending = self._pending
        before = pending.calls
        for batch in frame.batches:
            if problem := block_problem(batch):
                raise ValueError(": ".join(problem))
            if batch.partial:
                self._accept_values(batch, list(cut) or list_of(batch))
                continue
            ids, payloads, content_type = ids_of_results(batch), list(cut) or list_of(batch), batch.content_type
            if len(ids) != len(payloads):
                raise ValueError(f"a batch of {len(ids)} ids with {len(payloads)} payloads")
            for lost in self._complete(ids, payloads, batch):
                self._fail([lost], PAYLOAD_LOST)
            backends = backends_of(batch, len(payloads))
            if are_scattered(ids):
                unsorted = ids
                ids, payloads = ascending(unsorted, payloads)
                if backends:
                    _, backends = ascending(unsorted, backends)
                for part, places, start in pending.settle_scattered(ids):
                    end = start + len(places)
                    deliver_scattered(part, places, as_wanted(part.spec, payloads, backends, start, end), content_type)
                    part.settled_places(places)
                continue
            for part, at, start, count in pending.settle(ids):
                wanted = as_wanted(part.spec, payloads, backends, start, start + count)
                deliver(part, at, wanted, content_type)
                part.settled(at, count)
        for errors in frame.errors:
            failed: list[int] = []
            for first, last in merged(ranges_from_wire(errors.calls)):
                failed += pending.ids_within(first, last)
            self._fail(failed, from_wire(errors.failure))
        for ended in frame.done:
            for part, at, _, count in pending.settle(pending.ids_within(ended.first, ended.last)):
                if part.spec.streaming or not part.spec.options.reply:
                    finish(part, at, count)
                else:
                    fail(part, at, count, NO_RESULT)
                part.settled(at, count)
        self.answered += before - pending.calls

    def reject(self, rejected: router_service_pb2.RejectedBatch) -> None:
        """Calls that the router refuses."""
        last = rejected.first_call_id + rejected.count - 1
        ids = rejected.call_ids[:] or self._pending.ids_within(rejected.first_call_id, last)
        failure = from_wire(rejected.failure)
        if ids and ids[0] < self._first_new_id and failure.executed is Executed.NO:
            # The rejection covers this sending only: an earlier router had these calls, too.
            failure = replace(failure, executed=Executed.UNKNOWN)
        self._fail(ids, failure)

    def _accept_values(self, batch: call_pb2.ResultBatch, payloads: list[bytes]) -> None:
        """Values of calls that are still running."""
        ids = ids_of_results(batch)
        if len(ids) != len(payloads):
            raise ValueError(f"{len(ids)} ids with {len(payloads)} values")
        for lost in self._complete(ids, payloads, batch):
            self._values.lose(lost, PAYLOAD_LOST)
        self._values.accept(ids, payloads, batch.content_type)

    def _complete(self, ids: Sequence[int], payloads: list[bytes], batch: call_pb2.ResultBatch) -> list[int]:
        """Puts the payloads that arrived in chunks at their places. Returns the calls whose payloads are incomplete."""
        sizes = batch.chunked_sizes[:]
        return list(filter(self._is_wanted, self._chunks.put(ids, sizes, payloads))) if sizes else []

    def _is_wanted(self, call_id: int) -> bool:
        found = self._pending.find(call_id)
        return found is not None and found[0].is_wanted(found[1])

    def _fail(self, ids: list[int], failure: Failure) -> None:
        is_repeated = False
        self._chunks.drop(ids)
        if self.session_moved and failure.reason in _BEGUN_ELSEWHERE and failure.executed is Executed.NO:
            ids = self._send_elsewhere(ids)
        for part, at, _, count in self._pending.settle(ids):
            fail(part, at, count, failure, is_repeated=is_repeated)
            part.settled(at, count)
            is_repeated = True

    def _send_elsewhere(self, ids: list[int]) -> list[int]:
        """Sends calls again that had not started when the session moved. Returns the others.

        Calls with an ordering key are among the others: later calls of their lane may have run already.
        """
        left: list[int] = []
        for call_id in ids:
            found = self._pending.find(call_id)
            if found is None or found[0].spec.options.ordering_key or not found[0].is_wanted(found[1]):
                left.append(call_id)
                continue
            part, place = found
            payload, sink = part.payloads[place], part.sinks[place]
            for _, at, _, count in self._pending.settle([call_id]):
                part.settled(at, count)
            self._on_unstarted(part.spec, payload, sink, part.since)
        return left
