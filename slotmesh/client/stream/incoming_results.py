"""Outcomes as one stream brings them: which calls they belong to, and who hears of them.

Invariants: what comes for a call that has its outcome already changes nothing. A rejection is true of this sending
only: of calls that an earlier router had, too, nobody knows whether they were executed.
Owner: the `RouterLink` of one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slotmesh.batch_payloads import list_of, mistake_of
from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.outcomes import deliver, deliver_scattered, fail, finish
from slotmesh.client.stream.executors import as_wanted, backends_of
from slotmesh.client.stream.incoming_chunks import PAYLOAD_LOST, IncomingChunks
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.scattered_ids import are_scattered, ascending
from slotmesh.client.values.incoming_values import ArrivingValues
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.outcome_ids import ids_of_results, ranges_of_failed
from slotmesh.status import from_wire
from slotmesh.v1 import call_pb2, router_service_pb2
from slotmesh.wire.ranges import merged

OnUnstarted = Callable[[CallSpec, bytes, Any, float], None]
"""Hears of calls that are to be made again elsewhere: what they are, their payload, who waits, and since when."""

_BEGUN_ELSEWHERE = frozenset({Reason.SESSION_FENCED, Reason.STALE_TABLE})
"""What a router that the session has left says of calls that it cannot begin any more."""


class IncomingResults:
    """Between one stream and those who wait for its calls."""

    def __init__(self, pending: PendingCalls, values: ArrivingValues, on_unstarted: OnUnstarted) -> None:
        """`values`: takes those of handlers that yield."""
        self._pending = pending
        self._values = values
        self._on_unstarted = on_unstarted
        self.chunks = IncomingChunks(pending)
        """Of results that are too large for their frame."""
        self._first_new_id = pending.next_id
        self.session_moved = False
        """Whether the session goes on over another stream, where calls are made anew that do not start here."""
        self.answered = 0
        """Calls that got their outcome over this stream."""

    def accept(self, frame: call_pb2.ResultFrame) -> None:
        """The next frame of outcomes."""
        pending = self._pending
        before = pending.calls
        for batch in frame.batches:
            if mistake := mistake_of(batch):
                raise ValueError(": ".join(mistake))
            if batch.partial:
                self._accept_values(batch)
                continue
            ids, payloads, content_type = ids_of_results(batch), list_of(batch), batch.content_type
            if len(ids) != len(payloads):
                raise ValueError(f"a batch of {len(ids)} ids with {len(payloads)} payloads")
            if sizes := batch.chunked_sizes[:]:
                for lost in self.chunks.complete(ids, payloads, sizes):
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
            ids = errors.call_ids[:]
            for first, last in merged(ranges_of_failed(errors)):
                ids += pending.ids_within(first, last)
            self._fail(ids, from_wire(errors.failure))
        for ended in frame.done:
            for part, at, _, count in pending.settle(pending.ids_within(ended.first, ended.last)):
                finish(part, at, count)
                part.settled(at, count)
        self.answered += before - pending.calls

    def reject(self, rejected: router_service_pb2.RejectedBatch) -> None:
        """Calls that the router does not take."""
        last = rejected.first_call_id + rejected.count - 1
        ids = rejected.call_ids[:] or self._pending.ids_within(rejected.first_call_id, last)
        failure = from_wire(rejected.failure)
        if ids and ids[0] < self._first_new_id and failure.executed is Executed.NO:
            # True of this sending, but an earlier router had these calls, too.
            failure = replace(failure, executed=Executed.UNKNOWN)
        self._fail(ids, failure)

    def _accept_values(self, batch: call_pb2.ResultBatch) -> None:
        """Of calls that go on."""
        ids, payloads = ids_of_results(batch), list_of(batch)
        if len(ids) != len(payloads):
            raise ValueError(f"{len(ids)} ids with {len(payloads)} values")
        if sizes := batch.chunked_sizes[:]:
            for lost in self.chunks.complete(ids, payloads, sizes):
                self._values.lose(lost, PAYLOAD_LOST)
        self._values.accept(ids, payloads, batch.content_type)

    def _fail(self, ids: list[int], failure: Failure) -> None:
        told = False
        self.chunks.forget(ids)
        if self.session_moved and failure.reason in _BEGUN_ELSEWHERE and failure.executed is Executed.NO:
            ids = self._send_elsewhere(ids)
        for part, at, _, count in self._pending.settle(ids):
            fail(part, at, count, failure, told=told)
            part.settled(at, count)
            told = True

    def _send_elsewhere(self, ids: list[int]) -> list[int]:
        """Makes calls anew that had not started when the session went on. Returns the rest.

        Which is lanes' calls, too: later ones of their lane may have run by now.
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
