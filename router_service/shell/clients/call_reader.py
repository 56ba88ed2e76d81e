"""Frames of calls from a client: which batches are admitted, which of their calls are valid, and payloads in chunks.

Invariants: a batch is admitted or rejected as a whole; invalid calls of an admitted batch fail, each once.
Owner: the client's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import ne
from typing import cast

from router_service import convert
from router_service.core.calls import Batch, CallPayload, KeyedBatch, RouterCallOptions
from router_service.core.commands import DeliverFailure, Delivery
from router_service.core.events import CallFailedAtEdge, ChunkArrived, UploadCompleted, UploadFailed
from router_service.core.runs import Caller
from router_service.shell.clients.outbox import MAX_UNREAD_BYTES, ResultOutbox
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.payload_block import largest_of, nbytes_of
from slotmesh.calls.trace_context import TraceContext
from slotmesh.convert.batches import count_of
from slotmesh.errors import Failure, Reason
from slotmesh.streams.arriving_payloads import AnnouncedPayloads, PartsAssembly
from slotmesh.streams.chunks import Announced, Payload
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2


def uploads_of(caller: Caller, dispatcher: Dispatcher) -> AnnouncedPayloads[Payload]:
    """The payloads that a client has announced and not completed, which become events of the scheduler."""
    return AnnouncedPayloads(
        PartsAssembly,
        lambda call_id, payload: dispatcher.post(UploadCompleted(caller, call_id, payload)),
        lambda call_id, failure: dispatcher.post(UploadFailed(caller, call_id, failure)),
        lambda call_id, nbytes: dispatcher.post(ChunkArrived(caller, call_id, nbytes)),
    )


MAX_STEP = 512
"""Batches, runs or ranges of a frame that are dealt with before others have their turn on the event loop."""

MAX_NEIGHBOURS = 8
"""Neighbours of one key, on average, up to which the scheduler takes the calls of many keys together: more are better
off as a run for each key."""


def _to_nobody(*_: object) -> None:
    """The client of a reader that is closed."""


class CallReader:
    """Makes calls for the scheduler out of frames."""

    def __init__(
        self,
        endpoint: str,
        caller: Caller,
        default_options: call_pb2.CallOptions,
        results: ResultOutbox,
        uploads: AnnouncedPayloads[Payload],
        dispatcher: Dispatcher,
        *,
        reject: Callable[[router_service_pb2.CallBatch, Failure], None],
        deliver: Callable[[Delivery], None],
        max_payload_bytes: int,
    ) -> None:
        """`reject` answers the client for a whole batch, `deliver` for calls."""
        self._endpoint = endpoint
        self._caller = caller
        self._default_options = convert.options_from_wire(default_options)
        self._defaults_by_key = convert.OptionsByKey(default_options)
        self._default_method = default_options.method
        self._results = results
        self._uploads = uploads
        self._dispatcher = dispatcher
        self._reject = reject
        self._deliver = deliver
        self._max_payload_bytes = max_payload_bytes
        self.traces: dict[int, TraceContext] | None = None
        """Of the calls of the newest frame, as far as it was admitted; None if none has a trace context."""

    def close(self) -> None:
        """Nothing more is read. Whom it answers through is let go: they refer to this one as well."""
        self._reject = self._deliver = _to_nobody

    def admitted(
        self, frame: router_service_pb2.CallFrame, cut: Sequence[bytes] = ()
    ) -> Iterator[tuple[router_service_pb2.CallBatch, list[Batch | KeyedBatch], int]]:
        """The calls of each batch, of a large one in parts; none of one that is rejected. And what groups were seen.

        `cut`: payloads of the only batch, if they are not in it.
        """
        self.traces = None
        for batch in frame.batches:
            columns = self._columns(batch, cut)
            if isinstance(columns, Failure):
                self._reject(batch, columns)
                yield batch, [], 1
                continue
            ids, payloads, largest = columns
            comes_apart = batch.chunked_sizes or largest > MAX_INLINE_BYTES
            if batch.ordering_keys and not comes_apart and (keyed := self._keyed(batch, ids, payloads)):
                for each in keyed:
                    yield batch, [each], len(each.keys)
                continue
            parts: Iterable[tuple[list[Batch], int]] = (
                self._by_key(batch, ids, payloads) if batch.ordering_keys else ((self._alike(batch, ids, payloads), 1),)
            )
            for calls, groups in parts:
                yield batch, [*(self._apart(calls) if comes_apart else calls)], groups

    def _columns(
        self, batch: router_service_pb2.CallBatch, cut: Sequence[bytes]
    ) -> tuple[Sequence[int], Sequence[CallPayload], int] | Failure:
        """Ids, payloads, and the size of the largest of these, of a batch that is admitted; or why it is rejected."""
        ids = convert.ids_of(batch, self._caller.window.calls)
        if isinstance(ids, Failure):
            return ids
        payloads = convert.payloads_of(batch, cut)
        if isinstance(payloads, Failure):
            return payloads
        has_traces = batch.trace_starts or batch.traceparents or batch.tracestates or batch.http_requests
        traces = convert.traces_of(batch, ids) if has_traces else None
        if isinstance(traces, Failure):
            return traces
        failure = self._batch_problem(batch) if batch.ordering_keys or batch.resend else None
        if failure is None and self._caller.session is None:
            failure = self._not_reading()
        if failure := failure or self._dispatcher.scheduler.admit(self._caller, ids, nbytes_of(payloads)):
            return failure
        if (spans := self._dispatcher.traces) is not None:
            method = batch.options.method if batch.HasField("options") else self._default_method
            traces = spans.arrived(self._caller, self._endpoint, method, ids, traces, self._dispatcher.clock.now())
        if traces and self.traces is None:
            self.traces = traces
        elif traces and self.traces is not None:
            self.traces.update(traces)
        return ids, payloads, largest_of(payloads)

    def _batch_problem(self, batch: router_service_pb2.CallBatch) -> Failure | None:
        if batch.ordering_keys and len(batch.ordering_keys) != count_of(batch):
            return Failure(
                reason=Reason.BAD_REQUEST,
                message=(
                    f"ordering_keys: {len(batch.ordering_keys)} keys for {count_of(batch)} payloads; "
                    "they must be as many, or none"
                ),
                metadata={"field": "ordering_keys"},
            )
        session = self._caller.session
        if not batch.resend or (session is not None and session.epoch > 1):
            return None
        return Failure(
            reason=Reason.BAD_REQUEST,
            message="resend: calls are resent only when a session is resumed (epoch 2 and above)",
            metadata={"field": "resend"},
        )

    def _keyed(
        self, batch: router_service_pb2.CallBatch, ids: Sequence[int], payloads: Sequence[CallPayload]
    ) -> list[KeyedBatch]:
        """The calls of a batch of many keys, in parts, where the scheduler may take them together; empty otherwise."""
        by_key = self._options_by_key(batch)
        options = by_key.shared
        if batch.resend or isinstance(options, Failure) or options.stop_generation or options.streaming:
            return []
        keys = list(batch.ordering_keys)
        groups = 1 + sum(map(ne, keys, islice(keys, 1, None)))
        if options.slo_at is not None or len(keys) > groups * MAX_NEIGHBOURS:
            return []
        if not (partitions := convert.partitions_of(keys)):
            return []
        return [
            KeyedBatch(
                options,
                ids[at : at + MAX_STEP],
                cast("Sequence[Payload]", payloads[at : at + MAX_STEP]),
                keys[at : at + MAX_STEP],
                partitions[at : at + MAX_STEP],
                cast("Callable[[str], RouterCallOptions]", by_key.of),  # what all have is sound, and so are the keys
            )
            for at in range(0, len(keys), MAX_STEP)
        ]

    def _options_by_key(self, batch: router_service_pb2.CallBatch) -> convert.OptionsByKey:
        return convert.OptionsByKey(batch.options) if batch.HasField("options") else self._defaults_by_key

    def _by_key(
        self, batch: router_service_pb2.CallBatch, ids: Sequence[int], payloads: Sequence[CallPayload]
    ) -> Iterator[tuple[list[Batch], int]]:
        """The calls of a batch with a column of keys, neighbours of one key together, in parts of `MAX_STEP` groups.

        Calls with invalid options fail.
        """
        calls: list[Batch] = []
        payloads = list(payloads)
        options_of = self._options_by_key(batch).of
        at = groups = 0
        for key, neighbours in groupby(batch.ordering_keys):
            begin = at
            at += sum(1 for _ in neighbours)
            groups += 1
            calls += self._sound(options_of(key), ids[begin:at], payloads[begin:at])
            if groups == MAX_STEP:
                yield calls, groups
                calls, groups = [], 0
        yield calls, groups

    def _alike(
        self, batch: router_service_pb2.CallBatch, ids: Sequence[int], payloads: Sequence[CallPayload]
    ) -> list[Batch]:
        """The calls of a batch that share all their options. They fail where these are unsound."""
        options = convert.options_from_wire(batch.options) if batch.HasField("options") else self._default_options
        return self._sound(options, ids, payloads)

    def _sound(
        self, options: RouterCallOptions | Failure, ids: Sequence[int], payloads: Sequence[CallPayload]
    ) -> list[Batch]:
        if not isinstance(options, Failure) and options.stop_generation:
            options = self._stop_problem(options) or options
        if isinstance(options, Failure):
            self._deliver(DeliverFailure(self._caller, ids, options, nbytes_of(payloads)))
            return []
        if options.slo_at is not None:
            options = convert.with_relative_slo(options, self._dispatcher.clock.time_of_day())
        return [(options, ids, payloads)]

    def _not_reading(self) -> Failure | None:
        """Of a client without a session: what it does not read is kept here."""
        unread = self._results.unread_bytes
        if unread <= MAX_UNREAD_BYTES:
            return None
        return Failure(
            reason=Reason.WINDOW_EXCEEDED,
            message=f"{unread} bytes of results wait to be read: read them before sending more",
            retry_delay_s=0.1,
        )

    def _stop_problem(self, options: RouterCallOptions) -> Failure | None:
        needed = "an ordering key" if not options.ordering_key else "a session" if self._caller.session is None else ""
        return (
            Failure(
                reason=Reason.BAD_REQUEST,
                message=f"options.stream.stop_generation: needs {needed}",
                metadata={"field": "options.stream.stop_generation"},
            )
            if needed
            else None
        )

    def _apart(self, calls: list[Batch]) -> list[Batch]:
        """The calls, in order; those whose payload is still to come each alone. Those that are too large fail."""
        apart: list[Batch] = []
        for options, ids, payloads in calls:
            start = 0
            for at, payload in enumerate(payloads):
                is_announced = isinstance(payload, Announced)
                limit = self._max_payload_bytes if is_announced else MAX_INLINE_BYTES
                if not is_announced and len(payload) <= limit:
                    continue
                if at > start:
                    apart.append((options, ids[start:at], payloads[start:at]))
                start = at + 1
                if (size := len(payload)) > limit:
                    if options.stop_generation:
                        key, generation = options.ordering_key, options.stop_generation
                        self._dispatcher.post(CallFailedAtEdge(self._caller, key, generation, ids[at]))
                    self._deliver(DeliverFailure(self._caller, ids[at:start], convert.too_large(size, limit), size))
                    continue
                self._uploads.announce(ids[at], size)
                apart.append((options, ids[at:start], payloads[at:start]))
            if start < len(ids):
                apart.append((options, ids[start:], payloads[start:]))
        return apart
