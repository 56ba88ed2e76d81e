"""What a run's calls carry besides their payloads: options, origin, response heads, weights and slots.

Invariants: `AnswerHeads` and `Arrival` are one object per batch, shared by all runs that it is cut into, so calls are
identified by run id. A call with a weighing failure has no weight and never reaches the handler.
Owner: made when a frame is converted; executors and outcomes read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from slotmesh.calls.call_options import StatedOptions
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.calls.result_envelopes import with_head
from slotmesh.calls.trace_context import TraceContext, Traces, is_sampled
from slotmesh.errors import Failure
from slotmesh.streams.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD


class AnswerHeads:
    """Status and headers that handlers set for the responses to HTTP calls of one batch.

    A head is sent once, with the first payload of the response, and cannot be set afterwards. Handlers set heads on any
    thread; outcomes take them on the event loop.
    """

    __slots__ = ("_begun", "_heads", "_mark")

    def __init__(self, mark: bytes) -> None:
        """`mark`: the HTTP mark of the calls' options."""
        self._mark = mark
        self._heads: dict[int, bytes] = {}
        """By run id."""
        self._begun: set[int] = set()

    def put(self, run_id: int, head: bytes) -> bool:
        """Sets the head of a call's response. Returns False if the response has begun."""
        if run_id in self._begun:
            return False
        self._heads[run_id] = head
        return True

    def begin(self, run_id: int, payload: bytes) -> bytes:
        """Begins the response of a call. Returns the payload to send, with the head if one was set."""
        self._begun.add(run_id)
        head = self._heads.pop(run_id, None)
        return payload if head is None else with_head(payload, head, self._mark)

    def begin_each(self, first: int, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """Like `begin`, for consecutive calls with one payload each."""
        if not self._heads:
            self._begun.update(range(first, first + len(payloads)))
            return payloads
        return [self.begin(run_id, payload) for run_id, payload in enumerate(payloads, first)]


class HandlerCredit(NamedTuple):
    """How far a handler that yields may be ahead of its caller: it waits when either limit is reached."""

    values: int
    bytes: int


MAX_CREDIT = HandlerCredit(MAX_VALUES_AHEAD, MAX_BYTES_AHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCallOptions(StatedOptions):
    """The options that the calls of a run share. One object for all runs with equal options."""

    credit: HandlerCredit = MAX_CREDIT
    """Used only if the caller takes each value that the handler yields."""


class Arrival(NamedTuple):
    """What a router states about the origin of a batch's calls, besides their options."""

    waited_s: float | None
    """Seconds from the first call's arrival at the router to its arrival here; None if not stated."""
    is_shadow: bool
    """They are sampled copies, whose results are dropped."""
    first: int
    """Run id of the first call."""
    shard_keys: Sequence[str]
    """One for each call, or a single one for all; empty if none has one. So are the affinity keys."""
    traces: Traces
    """Trace contexts, by run id."""
    affinity_keys: Sequence[str] = ()
    heads: AnswerHeads | None = None
    """Response heads that handlers set; None if the calls did not arrive by HTTP."""

    def shard_key(self, run_id: int) -> str:
        """Returns the shard key of one call; empty if it has none."""
        return self._key(self.shard_keys, run_id)

    def affinity_key(self, run_id: int) -> str:
        """Returns the affinity key of one call; empty if it has none."""
        return self._key(self.affinity_keys, run_id)

    def _key(self, keys: Sequence[str], run_id: int) -> str:
        return keys[run_id - self.first if len(keys) > 1 else 0] if keys else ""

    def trace(self, run_id: int) -> TraceContext:
        """Returns the trace context of one call; empty if it has none."""
        return self.traces.get(run_id, _NO_TRACE)

    def sampled(self, most_alike: int) -> dict[int, TraceContext]:
        """Returns the contexts of sampled calls, by ascending run id, at most `most_alike` calls of each context."""
        if self.is_shadow:
            return {}
        alike: Counter[str] = Counter()
        found: dict[int, TraceContext] = {}
        for run_id, trace in self.traces.items():
            if is_sampled(trace):
                alike[trace.traceparent] += 1
                if alike[trace.traceparent] <= most_alike:
                    found[run_id] = trace
        return found


_NO_TRACE = TraceContext("")


class RerunOrigin(NamedTuple):
    """The first attempt at calls without a session that run again."""

    stream_id: str
    run_ids: Sequence[int]
    """Their run ids on that stream, parallel to the payloads."""
    attempt: int
    """At least 1."""


class Weighed:
    """The weight of one call of a batch method with a `batch_size_fn`.

    The batcher requests the weight once. The decoded arguments stay with the run until the call is executed, so that no
    payload is decoded twice.
    """

    __slots__ = ("arguments", "failure", "weight")

    def __init__(self, weight: float, arguments: Any = None, failure: Failure | None = None) -> None:
        self.weight = weight
        """Finite, not negative."""
        self.arguments = arguments
        """The shell's, opaque here."""
        self.failure = failure
        """Why the call cannot be executed: its arguments are invalid, or its weight cannot be computed."""


class SlotState(Enum):
    """The state of a slot. The values are shown to users."""

    RESERVED = "reserved"
    HELD = "held"
    """A direct stream has it, and no call runs in it."""
    BUSY = "busy"
    """A direct stream has it, and a call runs in it."""
    DISPATCHED = "dispatched"
    """A call uses it."""
    DONE = "done"
    """The call in it has ended."""
    RELEASED = "released"
    """Released without a call."""
    EXPIRED = "expired"


class ReservedSlot:
    """One permit that was reserved. Compared by identity."""

    __slots__ = (
        "__weakref__",
        "alarm",
        "endpoint",
        "expires_at",
        "forget_at",
        "granted_at",
        "holder",
        "identity",
        "lease_s",
        "number",
        "request",
        "secret",
        "state",
    )

    def __init__(
        self,
        secret: bytes,
        endpoint: str,
        granted_at: float,
        expires_at: float,
        identity: str = "",
        request: ReservationIdentity | None = None,
    ) -> None:
        self.request = request
        """The newest attempt that got the slot; None if its caller does not repeat the reservation."""
        self.secret = secret
        """Authorizes its use by the identity that reserved the slot."""
        self.identity = identity
        """The name of the caller that reserved it; empty if callers are not identified."""
        self.endpoint = endpoint
        """The only endpoint that it may be used for."""
        self.state = SlotState.RESERVED
        self.granted_at = granted_at
        self.expires_at = expires_at
        """Exclusive. Unused once the slot is dispatched."""
        self.alarm = inf
        """When its lease is checked; infinite once it is no longer reserved."""
        self.holder: object = None
        """The link of the direct stream that has it; opaque here. None if no stream has it."""
        self.number = 0
        """The stream's number for it."""
        self.lease_s = 0.0
        """The length of its restarted lease while a stream has it."""
        self.forget_at = inf
        """When its end is forgotten."""

    def __repr__(self) -> str:
        return f"<Slot of {self.endpoint}, {self.state.value}>"

    def ttl_s(self, now: float) -> float:
        """The remaining time of its lease."""
        return max(0.0, self.expires_at - now)
