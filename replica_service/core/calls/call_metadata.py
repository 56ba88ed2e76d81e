"""The options that the calls of a run share, as far as the replica reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from slotmesh.calls.call_options import StatedOptions
from slotmesh.calls.payload_framing import with_head
from slotmesh.calls.trace_context import TraceContext, Traces, is_sampled
from slotmesh.errors import Failure
from slotmesh.streams.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD

# What handlers set for the answers of calls that came by HTTP: status and headers.
#
# Invariants: one object for a whole batch, which all its runs share, so that calls are told apart by run id; what is
# set
# for an answer is taken once, with the first that is sent of it, and can be set no more from then on.
# Owner: made at the edge; handlers set, on any thread, and outcomes take, on the event loop.


class AnswerHeads:
    """Of one batch."""

    __slots__ = ("_begun", "_heads", "_mark")

    def __init__(self, mark: bytes) -> None:
        """`mark`: of the calls' options."""
        self._mark = mark
        self._heads: dict[int, bytes] = {}
        """By run id."""
        self._begun: set[int] = set()

    def put(self, run_id: int, head: bytes) -> bool:
        """Returns whether the answer can still have this: it has not begun."""
        if run_id in self._begun:
            return False
        self._heads[run_id] = head
        return True

    def begin(self, run_id: int, payload: bytes) -> bytes:
        """The next payload that is sent of a call. Returns it with what was set for its answer, if anything was."""
        self._begun.add(run_id)
        head = self._heads.pop(run_id, None)
        return payload if head is None else with_head(payload, head, self._mark)

    def begin_each(self, first: int, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The same, of neighbours that have one payload each."""
        if not self._heads:
            self._begun.update(range(first, first + len(payloads)))
            return payloads
        return [self.begin(run_id, payload) for run_id, payload in enumerate(payloads, first)]


class HandlerCredit(NamedTuple):
    """How far a handler that yields may be ahead of its caller: it waits when either is reached."""

    values: int
    bytes: int


MAX_CREDIT = HandlerCredit(MAX_VALUES_AHEAD, MAX_BYTES_AHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCallOptions(StatedOptions):
    """What the calls of a run share. One object for all runs with equal options."""

    credit: HandlerCredit = MAX_CREDIT
    """Read only where callers take each value that the handler yields."""


# Where calls come from, as far as only their handler may want to know it.
#
# Invariants: one object for a whole batch, which all its runs share, whatever they are cut into: so calls are told
# apart
# by run id.
# Owner: made at the edge, read by executors.


class Arrival(NamedTuple):
    """What a router says of the calls of a batch, beside their options."""

    waited_s: float | None
    """Seconds from the arrival of the first of them at the router to this replica; None where it does not say."""
    is_shadow: bool
    """They are sampled copies, whose results nobody has."""
    first: int
    """Run id of the first of the calls."""
    shard_keys: Sequence[str]
    """One for each of them, or a single one for all; empty where none has one."""
    traces: Traces
    """Trace contexts, by run id."""
    heads: AnswerHeads | None = None
    """What handlers set for their answers; None where they cannot."""

    def shard_key(self, run_id: int) -> str:
        """That of one call; empty where it has none."""
        keys = self.shard_keys
        return keys[run_id - self.first if len(keys) > 1 else 0] if keys else ""

    def trace(self, run_id: int) -> TraceContext:
        """That of one call; empty where it has none."""
        return self.traces.get(run_id, _NO_TRACE)

    def sampled(self, most_alike: int) -> dict[int, TraceContext]:
        """Those of calls whose spans are kept, by run id, ascending: of each trace context so many calls at most."""
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
    """Where calls without a session ran first that run once more."""

    stream_id: str
    run_ids: Sequence[int]
    """On it, parallel to the payloads."""
    attempt: int
    """At least 1."""


# What one call of a batch method weighs, where its `batch_size_fn` says so.
#
# Purpose: the batcher asks for the weight of a call once, where it first counts; what was decoded for that stays with
# the
# run until the call is executed, so that no payload is decoded twice.
# Invariant: a call that has a failure has no weight, and never reaches the handler.
# Owner: the batcher; the shell makes the values, and takes the arguments out again.


class Weighed:
    """One call, weighed."""

    __slots__ = ("arguments", "failure", "weight")

    def __init__(self, weight: float, arguments: Any = None, failure: Failure | None = None) -> None:
        self.weight = weight
        """Finite, not negative."""
        self.arguments = arguments
        """The shell's, opaque here."""
        self.failure = failure
        """Why the call cannot be executed: its arguments are unsound, or its weight cannot be computed."""


class SlotState(Enum):
    """What has become of a slot. The values are those that are shown."""

    RESERVED = "reserved"
    HELD = "held"
    """A direct stream has it, and no call runs in it."""
    BUSY = "busy"
    """A direct stream has it, and a call runs in it."""
    DISPATCHED = "dispatched"
    """A call has taken it over."""
    DONE = "done"
    """That call has ended."""
    RELEASED = "released"
    """Given back without a call."""
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
        "secret",
        "state",
    )

    def __init__(self, secret: bytes, endpoint: str, granted_at: float, expires_at: float, identity: str = "") -> None:
        self.secret = secret
        """A caller that has it may use the slot, if it is the one that has reserved it."""
        self.identity = identity
        """The name of that one; empty where nobody was asked who they are."""
        self.endpoint = endpoint
        """What was reserved for calls of this endpoint serves no other."""
        self.state = SlotState.RESERVED
        self.granted_at = granted_at
        self.expires_at = expires_at
        """Exclusive. Has no meaning any more once the slot was dispatched."""
        self.alarm = inf
        """When its lease is looked at; infinite once it is reserved no more."""
        self.holder: object = None
        """The link of the direct stream that has it; opaque here. None where none has."""
        self.number = 0
        """What the stream calls it."""
        self.lease_s = 0.0
        """What its lease lasts each time it starts anew, where a stream has it."""
        self.forget_at = inf
        """When its end need not be remembered any more."""

    def __repr__(self) -> str:
        return f"<Slot of {self.endpoint}, {self.state.value}>"

    def ttl_s(self, now: float) -> float:
        """What is left of its lease."""
        return max(0.0, self.expires_at - now)
