"""Values that the edge passes to the core: calls with their options, operations on slots, flows, and the order of keys.

Invariants: each operation on a slot is a run of one call, whose options name the operation. A reservation goes to any
replica that has room; the other operations are *bound* to the replica that granted the slot.
Owner: made at the edge, read by the core; `KeyOrder` and `PartitionColumn` belong to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from typing import NamedTuple

from router_service.core.rosters import ReplicaKey
from slotmesh.calls.call_options import StatedOptions
from slotmesh.calls.key_hash import place_of_key, place_of_model
from slotmesh.calls.request_ids import CallIdentity, ReservationIdentity
from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S
from slotmesh.errors import Failure
from slotmesh.streams.chunks import Announced, Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """A slot, at any replica that will do."""

    ttl_s: float = DEFAULT_LEASE_S
    """Length of the lease, from the grant."""
    replica_id: str = ""
    """The wanted replica; empty where any will do."""
    excluded: frozenset[str] = frozenset()
    """Replicas that are not wanted."""
    identity: str = ""
    """The identity that will hold the slot; empty if callers are not authenticated."""
    request: ReservationIdentity | None = field(default=None, compare=False)
    """What identifies the reservation, if its caller may repeat it."""
    lost_at: ReplicaKey | None = field(default=None, compare=False)
    """The replica that may have granted the slot: the link to it broke before it answered."""

    @property
    def is_constrained(self) -> bool:
        """Whether not every replica will do."""
        return bool(self.replica_id or self.excluded)

    def lost(self, key: ReplicaKey) -> Reserve:
        """The same, if the link to this replica broke before it answered."""
        return self if self.request is None else replace(self, lost_at=key)

    def admits(self, replica_id: str) -> bool:
        """Whether this replica will do."""
        return replica_id == (self.replica_id or replica_id) and replica_id not in self.excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """A call, in a slot."""

    token: str = field(repr=False)
    endpoint: str = ""
    """The endpoint that the caller means; empty if it names none."""
    identity: str = ""
    """The identity of the caller; here and below, empty if callers are not authenticated."""
    endpoints: frozenset[str] | None = None
    """Here and below, the endpoints that the caller may call: it does not see slots of others. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """A longer lease."""

    token: str = field(repr=False)
    ttl_s: float = DEFAULT_LEASE_S
    """From now."""
    identity: str = ""
    endpoints: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The slot goes back."""

    token: str = field(repr=False)
    identity: str = ""
    endpoints: frozenset[str] | None = None
    request: ReservationIdentity | None = None
    """That of a slot for which no caller waits here: no effect if a newer attempt has found it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpSlot:
    """The slot of a reservation that was sent before, if this replica holds it."""

    request: ReservationIdentity
    identity: str = ""


SlotWork = Reserve | Dispatch | Renew | Release | LookUpSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedSlot:
    """A leased slot, as its replica describes it."""

    token: str = field(repr=False)
    backend: str
    replica_id: str
    replica_address: str
    ongoing: int
    """The replica's running calls and reservations, this one included."""
    ttl_s: float
    """What is left of the lease, from now."""
    expire_time_s: float
    """When it ends, Unix seconds by the replica's clock: for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedSlot:
    """A slot that is not leased any more, and how loaded its replica is; zeros where nothing was held."""

    ongoing: int = 0
    max_ongoing: int = 0


OperationAnswer = tuple[int, "LeasedSlot | ReleasedSlot | Failure"]
"""The id of an operation, and what came of it."""


class Flow:
    """The unit of fair queueing: one stream, or all unary calls of one peer. Compared by identity.

    The edge makes flows; queues and accounts are kept by flow.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCallOptions(StatedOptions):
    """What the calls of a batch share, as far as routing reads it."""

    timeout_s: float = inf
    """Seconds from arrival to deadline, after which calls fail. Infinite where calls have no timeout."""
    partition: int = -1
    """Partition of the ordering key, or of the request id of a call without one; -1 without both."""
    request: CallIdentity | None = None
    """Of a single call that its caller may repeat: the replica that owns the partition remembers it. None: it has no
    request id."""
    takes_requests: bool = False
    """Requests of a call come one by one, once its handler has begun: it is sent to one replica, and to no shadow."""
    backend: str = ""
    """The backend of the endpoint's policy that must execute the calls; empty: one that the policy draws."""
    wire: bytes = b""
    """The options as the replica gets them. Opaque here: made at the edge, once for each distinct value."""
    prefers: bool = field(default=False, init=False, compare=False)
    """Some replicas may suit the calls better than others (`router_service.core.preferences`)."""
    affinity_place: int = field(default=0, init=False, compare=False)
    """The place of the affinity key on rings of replicas."""
    model_place: int = field(default=0, init=False, compare=False)
    """The same of the model."""

    def __post_init__(self) -> None:
        if self.prefix_blocks:
            object.__setattr__(self, "prefers", True)
        if self.affinity_key:
            object.__setattr__(self, "prefers", True)
            object.__setattr__(self, "affinity_place", place_of_key(self.affinity_key))
        if self.model_id:
            object.__setattr__(self, "prefers", True)
            object.__setattr__(self, "model_place", place_of_model(self.model_id))


NO_OPTIONS = RouterCallOptions()

CallPayload = Payload | Announced
"""What a call carries, or will."""

Batch = tuple[RouterCallOptions, Sequence[int], Sequence[CallPayload]]
"""Options, call ids and payloads of calls that arrived together; ids and payloads are parallel. A payload that is still
to come is alone in its batch."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyedBatch:
    """Calls that arrived together and share all options but their ordering keys, which are sound. Payloads are here."""

    options: RouterCallOptions
    """Without an ordering key."""
    ids: Sequence[int]
    payloads: Sequence[Payload]
    keys: list[str]
    """Parallel to the payloads, as the next."""
    partitions: list[int]
    options_of: Callable[[str], RouterCallOptions]
    """The options of the calls of one key: made at the edge, which remembers them."""

    def by_key(self, indices: Sequence[int]) -> Iterator[Batch]:
        """Some of the calls, by their indices in ascending order: neighbours of one key together."""
        at, end = 0, len(indices)
        ids, payloads, keys = self.ids, list(self.payloads), self.keys
        while at < end:
            begin, key = indices[at], keys[indices[at]]
            stop = begin
            while at < end and indices[at] == stop and keys[stop] == key:
                at, stop = at + 1, stop + 1
            yield self.options_of(key), ids[begin:stop], payloads[begin:stop]


Results = tuple[Sequence[int], Sequence[Payload], str]
"""Run ids, payloads and content type of calls that ended well; ids and payloads are parallel."""

Failures = tuple[Sequence[int], Failure]
"""Run ids of calls that failed alike."""

NO_CALLS: Sequence[int] = range(0)


class FirstAttempt(NamedTuple):
    """Where calls without a session were sent first, for the replica that gets them at the next attempt."""

    stream_id: str
    """Of the stream to the replica."""
    run_ids: Sequence[int]
    """On it, parallel to the payloads."""


class KeyOrder:
    """What keeps the calls of one partition in order while they move between owners.

    Invariants: nothing is sent to an owner while calls sent to an earlier one are unanswered, nor at an epoch for which
    a replica has denied being the owner.
    """

    __slots__ = ("epoch", "inflight", "number", "refused_epoch", "stale")

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        """Epoch of the owner; strictly increases with each change."""
        self.inflight = 0
        """Unanswered slices, at any owner; for slices with calls of several keys, unanswered calls."""
        self.stale = 0
        """Of these, the ones at an earlier owner."""
        self.refused_epoch = -1
        """The newest epoch at which a replica has refused to be the owner: runs wait for a newer one."""

    def sent(self, owner_epoch: int) -> None:
        """A slice left for the owner at this epoch."""
        self.inflight += 1
        self.stale += owner_epoch != self.epoch

    def answered(self, owner_epoch: int, _lo: int, _count: int, *, is_last: bool) -> Sequence[int]:
        """Calls of a slice left the owner; `is_last`: all of them have. Returns its own number if it may continue."""
        return (self.number,) if is_last and self.settled(owner_epoch) else ()

    def settled(self, owner_epoch: int) -> bool:
        """A slice has its outcome or was handed back. Returns whether runs may continue."""
        self.inflight -= 1
        if owner_epoch != self.epoch:
            self.stale -= 1
        return not self.stale

    def refused(self, owner_epoch: int, _lo: int = 0, _count: int = 0) -> None:
        """A replica is not the owner at this epoch: hold everything until the table names one at a newer epoch."""
        self.refused_epoch = max(self.refused_epoch, owner_epoch)


class PartitionColumn:
    """Ordering keys, partitions and epochs of a run with different keys, parallel to its calls.

    Purpose: calls of hundreds of keys for one owner stay one run, one slice and one batch unless something happens to
    some of them. The number of calls of a partition that are at a replica is counted call by call.
    Invariants: such a run never waits: it is sent as a whole when it is made, and what is handed back becomes runs of
    one key each. Each call is counted at its partition once when it is sent, and removed once when it is no longer
    there. Has the interface of `KeyOrder`.
    """

    __slots__ = ("_has_left", "epochs", "keys", "options_of", "partitions")

    number = -1
    """There is no single one."""

    def __init__(
        self,
        keys: list[str],
        partitions: Sequence[KeyOrder],
        epochs: list[int],
        options_of: Callable[[str], RouterCallOptions],
    ) -> None:
        """`options_of` gives the calls of one key the options that they have alone."""
        self.keys = keys
        self.partitions = partitions
        self.epochs = epochs
        self.options_of = options_of
        self._has_left: bytearray | None = None
        """One byte a call: 1 where it is at the owner no more. None while all are."""

    def sent(self, _owner_epoch: int) -> None:
        """All its calls left for the owner."""
        for partition, epoch in zip(self.partitions, self.epochs, strict=True):
            partition.sent(epoch)

    def answered(self, _owner_epoch: int, lo: int, count: int, *, is_last: bool) -> Sequence[int]:
        """These calls are at the owner no more; `is_last`: none is. Returns the partitions that may go on."""
        has_left, size = self._has_left, len(self.partitions)
        if has_left is None and is_last:
            self._has_left = bytearray(b"\x01") * size
            return [
                partition.number
                for partition, epoch in zip(self.partitions, self.epochs, strict=True)
                if partition.settled(epoch)
            ]
        if has_left is None:
            has_left = self._has_left = bytearray(size)
        going_on: list[int] = []
        for at in range(size) if is_last else range(lo, lo + count):
            if not has_left[at]:
                has_left[at] = 1
                if self.partitions[at].settled(self.epochs[at]):
                    going_on.append(self.partitions[at].number)
        return going_on

    def refused(self, _owner_epoch: int, lo: int, count: int) -> None:
        """The replica is not the owner of the partitions of these calls, at the epochs at which they were sent."""
        for at in range(lo, lo + count):
            self.partitions[at].refused(self.epochs[at], 0, 1)

    def part(self, lo: int, hi: int) -> PartitionColumn:
        """The column of some of the calls, which are yet to be sent."""
        return PartitionColumn(self.keys[lo:hi], self.partitions[lo:hi], self.epochs[lo:hi], self.options_of)

    def by_key(self, lo: int, hi: int) -> list[tuple[int, int, RouterCallOptions, KeyOrder]]:
        """Some of the calls, neighbours of one key together: from, to, options and partition."""
        parts: list[tuple[int, int, RouterCallOptions, KeyOrder]] = []
        end = lo
        for key, neighbours in groupby(self.keys[lo:hi]):
            begin, end = end, end + len(list(neighbours))
            parts.append((begin, end, self.options_of(key), self.partitions[begin]))
        return parts
