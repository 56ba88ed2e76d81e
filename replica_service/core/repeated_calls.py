"""Calls with a request id: which one of an id runs, who waits for its outcome, and the outcomes that are kept.

Purpose: a caller that repeats a call gets the outcome of the first one, and nothing runs twice.
Invariants: at most one call of an id is pending, and repetitions wait for it. A call that was not executed is forgotten
when it ends. Any other is remembered for `keep_s` after its end: if the bound of kept outcomes is exceeded, only that
it was executed. No call is forgotten earlier; where no more can be remembered, calls with new ids are refused. A call
of a partition that this replica does not own is looked up only. No event forgets more than a fixed number of calls.
Owner: the engine's repetitions (`shell/repetitions.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from replica_service.core import failures
from replica_service.core.request_memory import (
    OUTCOME_BYTES,
    VALUE_BYTES,
    CallOutcome,
    LinkedCall,
    RememberedCall,
    RequestMemory,
    bytes_of_failure,
    bytes_of_values,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.session_outcomes import MAX_KEPT_BYTES
from slotmesh.calls.id_ranges import Range, among
from slotmesh.calls.request_ids import KEEP_S, CallIdentity
from slotmesh.errors import Executed, Failure
from slotmesh.streams.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD

MAX_REMEMBERED = 262_144
"""Calls, pending ones included; about 700 bytes each, without outcomes."""
FORGOTTEN_AT_ONCE: Final = 32
"""Calls that the arrival of a call forgets."""
FORGOTTEN_BY_SWEEP: Final = 512


class RequestKey(NamedTuple):
    """Calls with the same key are one call."""

    endpoint: str
    """Empty for a call in a slot."""
    slot: bytes
    """The secret of its slot; empty for a call in none."""
    caller: str
    request_id: str


class CallVerdict(Enum):
    """What becomes of a call that has arrived."""

    EXECUTE = auto()
    WAIT = auto()
    """For the outcome of the call that it repeats."""
    DELIVER = auto()
    """It gets the outcome of the call that it repeats."""
    FAIL = auto()
    """With the failure of the outcome."""
    HAND_BACK = auto()
    """With the failure of the outcome: its router sends it elsewhere."""


class Decision(NamedTuple):
    """A verdict, with the outcome that it is about."""

    verdict: CallVerdict
    outcome: CallOutcome = CallOutcome()


_EXECUTE: Final = Decision(CallVerdict.EXECUTE)
_WAIT: Final = Decision(CallVerdict.WAIT)
_NOT_OWNED: Final = Decision(CallVerdict.HAND_BACK, CallOutcome(failure=failures.STALE))
_EVICTED: Final = CallOutcome(failure=failures.EVICTED)


class RepeatedCalls:
    """All calls with a request id of one replica."""

    def __init__(
        self,
        owns: Callable[[ReplicaRun], bool],
        *,
        keep_s: float = KEEP_S,
        max_calls: int = MAX_REMEMBERED,
        max_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        """`owns`: whether the replica may execute a run, as owner of its partition."""
        self._owns = owns
        self._keep_s = keep_s
        self._max_calls = max_calls
        self._memory = RequestMemory(max_bytes)
        self._calls: dict[RequestKey, RememberedCall] = {}
        self._ended: OrderedDict[RequestKey, RememberedCall] = OrderedDict()
        """Those with an outcome, in the order of their ends."""
        self._waiting: dict[RouterPeer, dict[int, RememberedCall]] = {}
        """What repetitions wait for, by link and run id. No link has an empty entry."""

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def held_bytes(self) -> int:
        """Memory of the kept outcomes, and of values of pending calls."""
        return self._memory.bytes

    # -- in --------------------------------------------------------------------------------------------------------

    def begin(self, run: ReplicaRun, now: float) -> Decision:
        """Decides about a call that has arrived."""
        self.expire(now, FORGOTTEN_AT_ONCE)
        if (request := run.request) is None:
            return _EXECUTE
        key = key_of(run, request)
        known = self._calls.get(key)
        if known is not None and self._is_over(known, now):
            self._forget(key)
            known = None
        if known is None:
            if not self._owns(run):
                return _NOT_OWNED
            if failure := self._full(request.caller):
                return _failed(failure)
            share = self._memory.add(request.caller)
            self._calls[key] = RememberedCall(request.digest, (run.link, run.first), share)
            return _EXECUTE
        if known.digest != request.digest:
            return _failed(failures.request_differs(request.request_id))
        if known.outcome is not None:
            return Decision(CallVerdict.DELIVER, known.outcome.for_mark(run.options.http))
        known.waiting[run.link, run.first] = run.options.http
        self._waiting.setdefault(run.link, {})[run.first] = known
        return _WAIT

    def _full(self, caller: str) -> Failure | None:
        """Returns the failure if no other call of the caller can be remembered.

        Of callers with a name none has more calls than are free, so that there is room for others.
        """
        free = self._max_calls - len(self._calls)
        share = self._memory.share_of(caller)
        own = 0 if share is None else share.calls
        if free <= 0 or (caller and own >= free):
            return failures.too_many_requests(own, len(self._calls))
        return None

    # -- out -------------------------------------------------------------------------------------------------------

    def yielded(self, run: ReplicaRun, payloads: Sequence[bytes]) -> None:
        """Keeps values of a call that continues, as far as a repetition can get them all at once."""
        known = self._pending(run)
        if known is None or known.values is None:
            return
        known.values += payloads
        size, count = known.size + bytes_of_values(payloads), len(known.values)
        if count > MAX_VALUES_AHEAD or size - count * VALUE_BYTES > MAX_BYTES_AHEAD:
            known.values, size = None, 0
        self._hold(known, size)

    def ended(
        self, run: ReplicaRun, result: bytes | Failure | None, now: float
    ) -> tuple[CallOutcome, Mapping[LinkedCall, bytes]] | None:
        """Returns the outcome of the call, and the repetitions that wait for it, with their HTTP marks.

        None if the call is not pending here.

        `result` None: a streaming call has ended well. A call that was not executed is forgotten.
        """
        known = self._pending(run)
        if known is None or run.request is None:
            return None
        waiting, known.waiting = known.waiting, {}
        for link, first in waiting:
            self._leave(link, first)
        key = key_of(run, run.request)
        failure = result if isinstance(result, Failure) else None
        if failure is not None and failure.executed is Executed.NO:
            self._forget(key)
            return CallOutcome(failure=failure), waiting
        values = known.values if result is None or isinstance(result, Failure) else (result,)
        outcome = _EVICTED
        if values is not None:
            outcome = CallOutcome(
                tuple(values), failure, run.options.content_type, run.options.streaming, run.options.http
            )
        known.outcome, known.ended_at, known.values = outcome, now, None
        self._ended[key] = known
        if outcome is not _EVICTED:
            known.share.held.pop(known, None)  # it becomes the newest
            self._hold(known, OUTCOME_BYTES + bytes_of_values(outcome.values) + bytes_of_failure(failure))
        return outcome, waiting

    # -- callers that leave ----------------------------------------------------------------------------------------

    def leave(self, link: RouterPeer, ranges: Iterable[Range]) -> list[int]:
        """Repetitions with these run ids, both ends included, wait no more. Returns their run ids."""
        left: list[int] = []
        if link in self._waiting:
            for lo, hi in ranges:
                left += among(self._waiting.get(link, {}), lo, hi)
        for first in left:
            del self._waiting[link][first].waiting[link, first]
            self._leave(link, first)
        return left

    def close(self, link: RouterPeer) -> None:
        """Handles an ended link."""
        for first, known in self._waiting.pop(link, {}).items():
            del known.waiting[link, first]

    def owes(self, link: RouterPeer) -> bool:
        """Whether repetitions of the router wait."""
        return link in self._waiting

    # -- forgetting ------------------------------------------------------------------------------------------------

    def expire(self, now: float, most: int = FORGOTTEN_BY_SWEEP) -> bool:
        """Forgets calls that ended `keep_s` ago, `most` of them. Returns whether some are left."""
        for _ in range(most):
            if not self._ended:
                return False
            key = next(iter(self._ended))
            if not self._is_over(self._ended[key], now):
                return False
            self._forget(key)
        return True

    def _is_over(self, known: RememberedCall, now: float) -> bool:
        return known.outcome is not None and known.ended_at + self._keep_s <= now

    def _forget(self, key: RequestKey) -> None:
        self._ended.pop(key, None)
        self._memory.remove(self._calls.pop(key))

    def _pending(self, run: ReplicaRun) -> RememberedCall | None:
        known = None if run.request is None else self._calls.get(key_of(run, run.request))
        is_it = known is not None and known.outcome is None and known.recipient == (run.link, run.first)
        return known if is_it else None

    def _hold(self, known: RememberedCall, size: int) -> None:
        """Sets the bytes that the call holds, and drops values above the bound."""
        self._memory.hold(known, size)
        for each in self._memory.excess():
            if each.outcome is None:
                each.values = None
            else:
                each.outcome = _EVICTED

    def _leave(self, link: RouterPeer, first: int) -> None:
        of_link = self._waiting[link]
        del of_link[first]
        if not of_link:
            del self._waiting[link]


def key_of(run: ReplicaRun, request: CallIdentity) -> RequestKey:
    """Returns the key of the run's call."""
    return RequestKey("" if request.slot else run.endpoint, request.slot, request.caller, request.request_id)


def _failed(failure: Failure) -> Decision:
    return Decision(CallVerdict.FAIL, CallOutcome(failure=failure))
