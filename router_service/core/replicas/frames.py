"""Cuts the next frame to a replica: batches of equal calls, out of everything that waits in its outbox.

Purpose: run ids are assigned here, at the last moment. So slices of different callers that share method and options
become one batch, which costs the replica as much as one slice would; and calls withdrawn before that cost nothing.
Invariants: slices of one batch, and batches of one ordering key, keep their order: a slice joins a batch before its own
place only if none of its key is in between. A batch has at most the backend's `max_wire_batch_size` calls, and
consecutive run ids. Slices that differ only in their ordering key share a batch, with a column of keys. A call with a
request id is alone in its batch.
Owner: pure functions on the replica's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import inf
from operator import attrgetter
from typing import NamedTuple, cast

from router_service.core.calls import NO_CALLS, FirstAttempt, KeyOrder, PartitionColumn, RouterCallOptions
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.core.run_states import NO_EARLIER
from router_service.core.runs import RouterRun, Sent
from slotmesh.calls.id_ranges import joined
from slotmesh.calls.payload_block import concatenated, nbytes_of
from slotmesh.calls.trace_context import TraceContext, ids_with
from slotmesh.streams.chunks import Payload
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES
from slotmesh.streams.pacing import COUNTED_FRAMES

MAX_FRAME_SLICES = 256
"""Slices of a frame at most. What costs is the slice, not the call: while the replica works on one frame, the router
works on the next, and results come back meanwhile. Larger frames leave one of the two idle in turn."""


class KeyColumns(NamedTuple):
    """The ordering key of each call of a batch, its partition, and the epoch of that one's owner."""

    keys: list[str]
    partitions: list[int]
    owner_epochs: list[int]

    def part(self, lo: int, hi: int) -> KeyColumns:
        return KeyColumns(self.keys[lo:hi], self.partitions[lo:hi], self.owner_epochs[lo:hi])


class NextFrame(NamedTuple):
    """What the next frame would carry, as far as it matters whether that had better wait for more."""

    calls: int
    unanswered: int
    """Calls at the replica whose answers may bring more; where they are quick, those that are quick, too."""
    are_quick: bool
    """The newest of the calls are known to take little time there."""


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """Calls with consecutive run ids that share everything but their payloads, and their ordering keys."""

    first_run_id: int
    endpoint: str
    options: RouterCallOptions
    payloads: Sequence[Payload]
    partition: int
    """Partition of the ordering key; -1 for calls that travel without one, and where there are `columns`."""
    owner_epoch: int
    attempt: int
    deadline: float
    """Monotonic seconds; infinite without one."""
    session: SessionConnection | None = None
    call_ids: Sequence[int] = ()
    """The client's ids of the calls, parallel to `payloads`, strictly increasing. Empty without a session."""
    recovers: bool = False
    """The replica has the calls: only their outcomes are asked for, and the payloads are empty."""
    columns: KeyColumns | None = None
    """Where the calls differ in their ordering keys: what stands in place of the options' one."""
    level: int = 0
    """Of the credit of calls that take several results: how far their handlers may be ahead."""
    origin: FirstAttempt | None = None
    """Of calls without a session that run once more."""
    max_result_bytes: int = 0
    """What the caller takes of one result, where that is less than a stream carries; 0 where it is not."""
    arrived: float = inf
    """When the first of the calls came to the router, monotonic seconds; infinite where that is not known."""
    is_shadow: bool = False
    """Sampled copies, whose results are dropped."""
    shard_keys: Sequence[str] = ()
    """Parallel to `payloads`, or a single one for all; empty where no call has one. So are the affinity keys."""
    affinity_keys: Sequence[str] = ()
    traces: Sequence[TraceContext | None] = ()
    """Parallel to `payloads`, or empty where no call has a trace context."""

    def lane(self, at: int) -> tuple[str, int, int]:
        """Of the call at this place: ordering key, partition and owner epoch. ("", -1, 0) where it travels without."""
        if (columns := self.columns) is not None:
            return columns.keys[at], columns.partitions[at], columns.owner_epochs[at]
        return (self.options.ordering_key, self.partition, self.owner_epoch) if self.partition >= 0 else ("", -1, 0)


def cut_frame(replica: RoutedReplica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
    """Takes slices out of the outbox, oldest first, until one of the bounds is passed; numbers and groups them."""
    outbox = replica.outbox
    most = replica.backend.max_wire_batch_size
    if len(outbox) == 1:
        sent = outbox.popleft()
        return _batches([sent], replica, most, _level(sent) if sent.run.options.streaming else 0)
    groups: list[list[Sent]] = []
    levels: list[int] = []
    """Of the credit of each group."""
    newest: dict[tuple[object, ...], int] = {}
    """The latest group for each kind of slices."""
    latest: dict[tuple[KeyOrder | PartitionColumn, str], int] = {}
    """The group that the latest slice of each ordering key went to."""
    last_keyed = last_column = -1
    """The last group with keyed slices, and that with slices of many keys: all others go behind these, or with them."""
    at = -1
    calls = size = slices = 0
    before: RouterRun | None = None
    while outbox and slices < MAX_FRAME_SLICES and calls < max_calls and size < max_bytes:
        sent = outbox.popleft()
        run = sent.run
        slices += 1
        calls += sent.count
        size += len(run.options.wire) + _nbytes(sent)
        lane = None if run.partition is None else (run.partition, run.options.ordering_key)
        if lane is not None:
            earliest = last_keyed if run.column is not None else max(last_column, latest.get(lane, -1))
        else:
            earliest = -1
        level = _level(sent) if run.options.streaming else 0
        if (
            before is None
            or not _alike(run, before)
            or level != levels[at]
            or (run.session is not None and not _follows(sent, groups[at]))
            or at < earliest
        ):
            kind = (
                *(run.options.wire, run.endpoint, run.attempt, run.deadline, lane is None, run.shadow_of is None),
                *(run.session, run.recovers, level, run.origin and run.origin.stream_id),
                run if run.options.request is not None else None,
            )
            at = newest.get(kind, -1)
            if at < 0 or at < earliest or not _follows(sent, groups[at]):
                at = newest[kind] = len(groups)
                groups.append([])
                levels.append(level)
            before = run
        if lane is not None:
            last_keyed = max(last_keyed, at)
            if run.column is not None:
                last_column = at
            else:
                latest[lane] = at
        groups[at].append(sent)
    return [
        batch for group, level in zip(groups, levels, strict=True) for batch in _batches(group, replica, most, level)
    ]


def is_full(replica: RoutedReplica) -> bool:
    """Whether as many slices wait as a frame carries."""
    return len(replica.outbox) >= MAX_FRAME_SLICES


def pending(replica: RoutedReplica) -> NextFrame:
    """What waits for the next frame, where something does."""
    outbox = replica.outbox
    calls = sum([sent.count for sent in outbox])
    are_quick = replica.is_quick(outbox[-1].run.options.method)
    unanswered = replica.count_quick(calls * COUNTED_FRAMES) if are_quick else replica.owed - calls
    return NextFrame(calls, unanswered, are_quick)


def _level(sent: Sent) -> int:
    """Of the credit of calls that take several results. Values of shadows are taken as they come."""
    run = sent.run
    return 0 if run.shadow_of is not None else run.caller.stream(run.ids[sent.lo : sent.lo + sent.count])


def _alike(run: RouterRun, other: RouterRun) -> bool:
    """Whether the runs plainly belong to one batch: most do that come one after the other, and need no look-up."""
    return (
        run.options.wire is other.options.wire
        and run.deadline == other.deadline
        and run.endpoint == other.endpoint
        and not run.attempt
        and not other.attempt
        and run.session is other.session
        and run.earlier is other.earlier
        and (run.partition is None) is (other.partition is None)
        and run.shadow_of is other.shadow_of
        and run.options.request is None
        and other.options.request is None
    )


def _follows(sent: Sent, group: Sequence[Sent]) -> bool:
    """Whether the slice's call ids are above those of the group: a session's ids ascend within a batch."""
    if sent.run.session is None or not group:
        return True
    last = group[-1]
    return sent.run.ids[sent.lo] > last.run.ids[last.lo + last.count - 1]


def _batches(group: list[Sent], replica: RoutedReplica, most: int, level: int) -> list[OutgoingBatch]:
    first = replica.inflight.number(group[0])
    payloads = _payloads(group[0])
    run = group[0].run
    is_traced = run.traces is not None
    if len(group) > 1:
        parts = [payloads]
        for sent in group[1:]:
            replica.inflight.number(sent)
            parts.append(_payloads(sent))
            if sent.run.traces is not None:
                is_traced = True
        payloads = cast("Sequence[Payload]", concatenated(parts))
    ids = _ids(group, _call_ids) if run.session is not None else NO_CALLS
    origin = None if run.origin is None else FirstAttempt(run.origin.stream_id, _ids(group, _origin_ids))
    partition = -1 if run.partition is None else run.partition.number
    columns = _columns(group) if run.column is not None or (run.partition is not None and len(group) > 1) else None
    shard_keys: Sequence[str] = ()
    affinity_keys: Sequence[str] = ()
    if run.partition is None and _has_keys(group):
        shard_keys, affinity_keys = _keys_of(group, _shard_key), _keys_of(group, _affinity_key)
    traces = _traces(group) if is_traced else ()
    return [
        OutgoingBatch(
            first + at,
            run.endpoint,
            run.options,
            payloads if len(payloads) <= most else payloads[at : at + most],
            partition if columns is None else -1,
            group[0].owner_epoch,
            run.attempt,
            run.deadline,
            run.session,
            ids[at : at + most],
            run.earlier is not NO_EARLIER and run.recovers,
            columns and columns.part(at, at + most),
            level,
            origin and FirstAttempt(origin.stream_id, origin.run_ids[at : at + most]),
            _limit(run),
            run.arrived,
            run.shadow_of is not None,
            shard_keys if len(shard_keys) <= 1 else shard_keys[at : at + most],
            affinity_keys if len(affinity_keys) <= 1 else affinity_keys[at : at + most],
            traces and traces[at : at + most],
        )
        for at in range(0, len(payloads), most)
    ]


def _limit(run: RouterRun) -> int:
    """Of results. Slices of one batch have it in common where they have a session: then they are of one caller."""
    most = run.caller.max_value_bytes if run.session is not None else MAX_PAYLOAD_BYTES
    return most if most < MAX_PAYLOAD_BYTES else 0


def _columns(group: Sequence[Sent]) -> KeyColumns | None:
    """The lanes of all calls; None if it is one and the same, and that of the first run."""
    columns = KeyColumns([], [], [])
    keys, partitions, owner_epochs = columns
    for sent in group:
        run, count = sent.run, sent.count
        if (column := run.column) is not None:
            keys += column.keys[sent.lo : sent.lo + count]
            partitions += [each.number for each in column.partitions[sent.lo : sent.lo + count]]
            owner_epochs += column.epochs[sent.lo : sent.lo + count]
            continue
        if run.partition is None:
            continue
        if count == 1:
            keys.append(run.options.ordering_key)
            partitions.append(run.partition.number)
            owner_epochs.append(sent.owner_epoch)
        else:
            keys += [run.options.ordering_key] * count
            partitions += [run.partition.number] * count
            owner_epochs += [sent.owner_epoch] * count
    if group[0].run.column is not None:
        return columns
    is_one = keys.count(keys[0]) == len(keys) and owner_epochs.count(owner_epochs[0]) == len(keys)
    return None if is_one else columns


_shard_key = attrgetter("run.options.shard_key")
_affinity_key = attrgetter("run.options.affinity_key")


def _has_keys(group: Sequence[Sent]) -> bool:
    """Whether a call has a shard key or an affinity key: mostly none has."""
    for sent in group:
        options = sent.run.options
        if options.shard_key or options.affinity_key:
            return True
    return False


def _keys_of(group: Sequence[Sent], key_of: Callable[[Sent], str]) -> Sequence[str]:
    """Those of all calls; a single one where all have it, empty where none has."""
    first = key_of(group[0])
    for sent in group:
        if key_of(sent) != first:
            return [key for sent in group for key in repeat(key_of(sent), sent.count)]
    return (first,) if first else ()


def _traces(group: Sequence[Sent]) -> Sequence[TraceContext | None]:
    """Those of all calls; empty where none has one."""
    traces: list[TraceContext | None] = []
    for sent in group:
        run = sent.run
        ids = run.ids[sent.lo : sent.lo + sent.count]
        traces += map(run.traces.get, ids) if run.traces is not None else [None] * sent.count
    return traces if any(traces) else ()


def _call_ids(run: RouterRun) -> Sequence[int]:
    return run.ids


def _origin_ids(run: RouterRun) -> Sequence[int]:
    return NO_CALLS if run.origin is None else run.origin.run_ids


def _ids(group: Sequence[Sent], ids_of: Callable[[RouterRun], Sequence[int]]) -> Sequence[int]:
    """Such ids of all calls: a range where they follow one by one."""
    ids: Sequence[int] = NO_CALLS
    for sent in group:
        ids = joined(ids, ids_of(sent.run)[sent.lo : sent.lo + sent.count])
    return ids


def _nbytes(sent: Sent) -> int:
    """What the slice adds to a frame, near enough: payloads, and what else differs from call to call."""
    run, lo, hi = sent.run, sent.lo, sent.lo + sent.count
    size = 0 if run.earlier is not NO_EARLIER and run.recovers else nbytes_of(run.payloads, lo, hi)
    if run.column is not None:
        size += nbytes_of(run.column.keys, lo, hi)
    if run.traces is not None:
        traces = [run.traces[each] for each in ids_with(run.traces, run.ids[lo:hi])]
        size += sum([len(each.traceparent) + len(each.tracestate) + len(each.http) for each in traces])
    return size


def _payloads(sent: Sent) -> Sequence[Payload]:
    if sent.run.earlier is not NO_EARLIER and sent.run.recovers:
        return [b""] * sent.count
    payloads = cast("Sequence[Payload]", sent.run.payloads)  # nothing is sent before it is complete
    return payloads if sent.count == len(payloads) else payloads[sent.lo : sent.lo + sent.count]
