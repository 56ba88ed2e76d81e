"""What the next frame to a replica carries: batches of equal calls, out of everything that waits in its outbox.

Purpose: run ids are given here, at the last moment. So slices of different callers that share method and options become
one batch, which costs the replica as much as one slice would; and what is taken back before costs nothing.
Invariants: slices of one batch, and batches of one ordering key, keep their order: a slice joins a batch before its own
place only where none of its key is in between. A batch has at most the backend's `max_batch_size` calls. Its run ids
are consecutive.
Owner: pure function on the replica's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router_service.core.calls import NO_CALLS

if TYPE_CHECKING:
    from router_service.core.calls import CallOptions, Run, Sent
    from router_service.core.partitions import Partition
    from router_service.core.replicas import Replica
    from router_service.core.sessions import Session


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """Calls with consecutive run ids that share everything but their payloads."""

    first_run_id: int
    endpoint: str
    options: CallOptions
    payloads: Sequence[bytes]
    partition: int
    """Partition of the ordering key; -1 for calls that travel without one."""
    owner_epoch: int
    attempt: int
    deadline: float
    """Monotonic seconds; infinite without one."""
    session: Session | None = None
    call_ids: Sequence[int] = ()
    """The client's ids of the calls, parallel to `payloads`, strictly increasing. Empty without a session."""
    recovers: bool = False
    """The replica has the calls: only their outcomes are asked for, and the payloads are empty."""


def cut_frame(replica: Replica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
    """Takes slices out of the outbox, oldest first, until one of the bounds is passed; numbers and groups them."""
    outbox = replica.outbox
    most = replica.backend.max_batch_size
    if len(outbox) == 1:
        return _batches([outbox.popleft()], replica, most)
    in_order: list[list[Sent]] = []
    groups: dict[tuple[object, ...], list[Sent]] = {}
    newest: dict[tuple[Partition, str], list[Sent]] = {}
    """Where the latest slice of each ordering key went."""
    group: list[Sent] = []
    calls = size = 0
    before: Run | None = None
    epoch = 0
    while outbox and calls < max_calls and size < max_bytes:
        sent = outbox.popleft()
        run = sent.run
        calls += sent.count
        size += sum(map(len, _payloads(sent)))
        if before is None or sent.owner_epoch != epoch or not _alike(run, before) or not _follows(sent, group):
            # The partition tells a shadow, which travels without its key, from the call that it copies.
            key = (
                *(run.options.wire, run.endpoint, run.attempt, run.deadline, sent.owner_epoch),
                *(run.partition, run.session, run.recovers),
            )
            found = groups.get(key)
            lane = None if run.partition is None else (run.partition, run.options.ordering_key)
            if found is None or (lane is not None and newest[lane] is not found) or not _follows(sent, found):
                found = groups[key] = []
                in_order.append(found)
            group = found
            if lane is not None:
                newest[lane] = group
            before, epoch = run, sent.owner_epoch
        group.append(sent)
    return [batch for group in in_order for batch in _batches(group, replica, most)]


def _alike(run: Run, other: Run) -> bool:
    """Whether the runs plainly belong to one batch: most do that come one after the other, and need no look-up."""
    return (
        run.options is other.options
        and run.deadline == other.deadline
        and run.endpoint == other.endpoint
        and run.partition is other.partition
        and run.attempt == other.attempt
        and run.session is other.session
        and run.recovers is other.recovers
    )


def _follows(sent: Sent, group: Sequence[Sent]) -> bool:
    """Whether the slice's call ids are above those of the group: a session's ids ascend within a batch."""
    if sent.run.session is None:
        return True
    last = group[-1]
    return sent.run.ids[sent.lo] > last.run.ids[last.lo + last.count - 1]


def _batches(group: list[Sent], replica: Replica, most: int) -> list[OutgoingBatch]:
    first = replica.number(group[0])
    payloads = _payloads(group[0])
    if len(group) > 1:
        payloads = list(payloads)
        for sent in group[1:]:
            replica.number(sent)
            payloads += _payloads(sent)
    run = group[0].run
    ids = _call_ids(group) if run.session is not None else NO_CALLS
    partition = -1 if run.partition is None else run.partition.number
    return [
        OutgoingBatch(
            first + at,
            run.endpoint,
            run.options,
            payloads if len(payloads) <= most else payloads[at : at + most],
            partition,
            group[0].owner_epoch,
            run.attempt,
            run.deadline,
            run.session,
            ids[at : at + most],
            run.recovers,
        )
        for at in range(0, len(payloads), most)
    ]


def _call_ids(group: Sequence[Sent]) -> Sequence[int]:
    """The client's ids of all calls: a range where they follow one by one."""
    ids: Sequence[int] = NO_CALLS
    for sent in group:
        more = sent.run.ids[sent.lo : sent.lo + sent.count]
        if not ids:
            ids = more
        elif isinstance(ids, range) and isinstance(more, range) and ids.stop == more.start:
            ids = range(ids.start, more.stop)
        elif isinstance(ids, list):
            ids += more
        else:
            ids = [*ids, *more]
    return ids


def _payloads(sent: Sent) -> Sequence[bytes]:
    if sent.run.recovers:
        return [b""] * sent.count
    payloads = sent.run.payloads
    return payloads if sent.count == len(payloads) else payloads[sent.lo : sent.lo + sent.count]
