"""What the edge hands to the router's core: calls, what they share, and what became of them.

Owner: made at the edge, read by the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from slotmesh.call_options.model import StatedOptions
from slotmesh.errors import Failure
from slotmesh.wire.chunks import Announced, Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCallOptions(StatedOptions):
    """What the calls of a batch share, as far as routing reads it."""

    timeout_s: float = inf
    """Seconds from arrival to deadline, after which calls fail. Infinite where calls have no timeout."""
    partition: int = -1
    """Partition of the ordering key; -1 without one."""
    takes_requests: bool = False
    """Requests of a call come one by one, once its handler has begun: it is sent to one replica, and to no shadow."""
    backend: str = ""
    """The backend of the endpoint's policy that must execute the calls; empty: one that the policy draws."""
    wire: bytes = b""
    """The options as the replica gets them. Opaque here: made at the edge, once for each distinct value."""


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
