"""What the router moves: runs of calls, and the parts of them that were sent.

Purpose: the values that admission, queues and replicas pass around. One object a run, never one a call.
Invariants: `0 <= cursor <= len(payloads)`; what is before the cursor was sent (or failed), what is behind it waits.
`unanswered` counts the calls of the run that have no outcome yet; it reaches 0 exactly once.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from slotmesh.errors import Failure

if TYPE_CHECKING:
    from router_service.core.admission import Account
    from router_service.core.callers import Caller
    from router_service.core.partitions import Partition
    from router_service.core.replicas import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What the calls of a batch share, as far as routing reads it."""

    method: str = ""
    content_type: str = ""
    ordering_key: str = ""
    partition: int = -1
    """Partition of the ordering key; -1 without one."""
    timeout_s: float = inf
    """Seconds from arrival to deadline."""
    idempotent: bool = False
    wire: bytes = b""
    """The options as the replica gets them. Opaque here: made at the edge, once for each distinct value."""


Batch = tuple[CallOptions, Sequence[int], Sequence[bytes]]
"""Options, call ids and payloads of calls that arrived together; ids and payloads are parallel."""

Results = tuple[list[int], Sequence[bytes], str]
"""Run ids, payloads and content type of calls that ended well; ids and payloads are parallel."""

Failures = tuple[list[int], Failure]
"""Run ids of calls that failed alike."""


class Run:
    """Consecutive calls of one caller that share their options."""

    __slots__ = (
        "__weakref__",
        "account",
        "arrived",
        "attempt",
        "caller",
        "cursor",
        "deadline",
        "endpoint",
        "ids",
        "label",
        "options",
        "partition",
        "payloads",
        "sents",
        "seq",
        "unanswered",
    )

    def __init__(
        self,
        *,
        seq: int,
        caller: Caller,
        endpoint: str,
        options: CallOptions,
        ids: Sequence[int],
        payloads: Sequence[bytes],
        arrived: float,
        attempt: int = 0,
    ) -> None:
        self.seq = seq
        """Age: earlier runs have lower numbers. Slices of one run share it."""
        self.caller = caller
        self.endpoint = endpoint
        self.label = endpoint
        """The endpoint as counters name it: empty where the table does not."""
        self.options = options
        self.ids = ids
        """The client's call ids, parallel to `payloads`: a range, or a list where they are sparse."""
        self.payloads = payloads
        self.arrived = arrived
        self.deadline = arrived + options.timeout_s
        """Monotonic seconds; infinite without one."""
        self.attempt = attempt
        self.cursor = 0
        self.unanswered = len(payloads)
        self.sents: list[Sent] = []
        self.partition: Partition | None = None
        self.account: Account | None = None
        """Whom the waiting calls are charged to; None while none wait."""

    @property
    def waiting(self) -> int:
        """Calls that were neither sent nor failed."""
        return len(self.payloads) - self.cursor

    @property
    def age(self) -> tuple[int, int]:
        """Where the waiting part belongs in a queue: by arrival, then by call id."""
        return self.seq, self.ids[self.cursor]

    def slice(self, lo: int, hi: int) -> Run:
        """A new run of some of the calls, as old as this one, with nothing sent."""
        part = Run(
            seq=self.seq,
            caller=self.caller,
            endpoint=self.endpoint,
            options=self.options,
            ids=self.ids[lo:hi],
            payloads=self.payloads[lo:hi],
            arrived=self.arrived,
            attempt=self.attempt,
        )
        part.partition = self.partition
        return part


class Sent:
    """A slice of a run at a replica: `count` calls with consecutive run ids from `first`."""

    __slots__ = ("abandoned", "answered", "count", "first", "lo", "owner_epoch", "remaining", "replica", "run")

    def __init__(self, first: int, run: Run, lo: int, count: int, replica: Replica, owner_epoch: int) -> None:
        self.first = first
        self.run = run
        self.lo = lo
        """Index in the run of the slice's first call."""
        self.count = count
        self.remaining = count
        """Calls that the replica has not answered."""
        self.answered: bytearray | None = None
        """One byte a call, 1 where it was answered. None as long as all or none were."""
        self.replica = replica
        self.owner_epoch = owner_epoch
        """Epoch of the partition's owner at sending; 0 without an ordering key."""
        self.abandoned = False
        """The caller has its outcome already (or is gone): what the replica answers is dropped."""

    def take(self, offset: int, count: int) -> list[tuple[int, int]]:
        """Marks calls as answered; returns those that were not before, as (offset, count) within the slice."""
        if self.answered is None:
            if count == self.count:
                self.remaining = 0
                return [(offset, count)]
            self.answered = bytearray(self.count)
        mask = self.answered
        if not any(mask[offset : offset + count]):
            mask[offset : offset + count] = b"\x01" * count
            self.remaining -= count
            return [(offset, count)]
        fresh = [(lo, n) for lo, n in _gaps(mask, offset, offset + count)]
        for lo, n in fresh:
            mask[lo : lo + n] = b"\x01" * n
            self.remaining -= n
        return fresh

    def open_parts(self) -> list[tuple[int, int]]:
        """The calls that were not answered, as (offset, count) within the slice."""
        if self.answered is None:
            return [(0, self.count)] if self.remaining else []
        return _gaps(self.answered, 0, self.count)


def _gaps(mask: bytearray, start: int, end: int) -> list[tuple[int, int]]:
    gaps: list[tuple[int, int]] = []
    at = mask.find(0, start, end)
    while at >= 0:
        stop = mask.find(1, at, end)
        stop = end if stop < 0 else stop
        gaps.append((at, stop - at))
        at = mask.find(0, stop, end)
    return gaps
