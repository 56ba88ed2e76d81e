"""Calls with a request id: which one of an id runs, who waits for its outcome, and the outcomes that are kept.

Purpose: a caller that repeats a call gets the outcome of the first one, and nothing runs twice.
Invariants: at most one call of an id is pending, and repetitions wait for it. A call that was not executed is forgotten
when it ends. Any other is remembered for `keep_s` after its end: if the bounds of kept outcomes are exceeded, only that
it was executed. No call is forgotten earlier; where no more can be remembered, calls with new ids are refused.
Owner: the engine's repetitions (`shell/repetitions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from replica_service.core import failures
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.session_outcomes import CALL_BYTES, MAX_KEPT_BYTES, MAX_KEPT_RUNS
from slotmesh.calls.id_ranges import Range, among
from slotmesh.errors import Executed, Failure
from slotmesh.streams.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD

KEEP_S = 60.0
MAX_REMEMBERED = 262_144
"""Calls, pending ones included; about 400 bytes each, without outcomes."""

LinkedCall: TypeAlias = tuple[RouterPeer, int]
"""A link, and the run id of the call there."""


class CallOutcome(NamedTuple):
    """How a call has ended."""

    values: Sequence[bytes] = ()
    """Its result, or what it yielded."""
    failure: Failure | None = None
    content_type: str = ""
    is_streamed: bool = False
    """Its caller takes each value that the handler yields."""

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return sum(map(len, self.values))


class RememberedCall:
    """One call, pending or ended. Compared by identity."""

    __slots__ = ("digest", "ended_at", "outcome", "recipient", "size", "values", "waiting")

    def __init__(self, digest: bytes, recipient: LinkedCall) -> None:
        self.digest = digest
        self.recipient = recipient
        """Of the call that runs. Its own outcome is not delivered from here."""
        self.waiting: list[LinkedCall] = []
        """Of repetitions."""
        self.values: list[bytes] | None = []
        """Values yielded so far; None if they are too many to be kept."""
        self.size = 0
        """Bytes of the values, and of the kept outcome."""
        self.outcome: CallOutcome | None = None
        """None: pending."""
        self.ended_at = 0.0


class RepeatedCalls:
    """All calls with a request id of one replica."""

    def __init__(
        self,
        *,
        keep_s: float = KEEP_S,
        max_calls: int = MAX_REMEMBERED,
        max_kept: int = MAX_KEPT_RUNS,
        max_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self.bytes = 0
        """Memory of the kept outcomes, bytes."""
        self._keep_s = keep_s
        self._max_calls = max_calls
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self._calls: dict[tuple[str, str], RememberedCall] = {}
        """By scope and request id."""
        self._ended: dict[tuple[str, str], RememberedCall] = {}
        """Those with an outcome, in the order of their ends."""
        self._kept: dict[RememberedCall, None] = {}
        """Those whose outcome is kept, in the same order."""
        self._waiting: dict[RouterPeer, dict[int, RememberedCall]] = {}
        """What repetitions wait for, by link and run id. No link has an empty entry."""

    def __len__(self) -> int:
        return len(self._calls)

    # -- in --------------------------------------------------------------------------------------------------------

    def begin(self, run: ReplicaRun, now: float) -> CallOutcome | Failure | bool:
        """Whether the call of the run is to be executed; False: it waits for one that runs. Or its outcome, if known.

        A failure refuses the call.
        """
        self.expire(now)
        if (request := run.request) is None:
            return True
        known = self._calls.get(request.key)
        if known is None:
            if len(self._calls) >= self._max_calls:
                return failures.too_many_requests(self._max_calls)
            self._calls[request.key] = RememberedCall(request.digest, (run.link, run.first))
            return True
        if known.digest != request.digest:
            return failures.request_differs(request.key[1])
        if known.outcome is not None:
            return known.outcome
        known.waiting.append((run.link, run.first))
        self._waiting.setdefault(run.link, {})[run.first] = known
        return False

    # -- out -------------------------------------------------------------------------------------------------------

    def yielded(self, run: ReplicaRun, payloads: Iterable[bytes]) -> None:
        """Keeps values of a call that continues, as far as a repetition can get them all at once."""
        known = self._pending(run)
        if known is None or known.values is None:
            return
        for payload in payloads:
            known.values.append(payload)
            known.size += len(payload)
        if len(known.values) > MAX_VALUES_AHEAD or known.size > MAX_BYTES_AHEAD:
            known.values, known.size = None, 0

    def ended(
        self, run: ReplicaRun, result: bytes | Failure | None, now: float
    ) -> tuple[CallOutcome, Sequence[LinkedCall]] | None:
        """Returns the outcome of the call, and the repetitions that wait for it. None if the call is not pending here.

        `result` None: a streaming call has ended well. A call that was not executed is forgotten.
        """
        known = self._pending(run)
        if known is None or (request := run.request) is None:
            return None
        waiting, known.waiting = known.waiting, []
        for link, first in waiting:
            self._leave(link, first)
        failure = result if isinstance(result, Failure) else None
        if failure is not None and failure.executed is Executed.NO:
            del self._calls[request.key]
            return CallOutcome(failure=failure), waiting
        values = known.values if result is None or isinstance(result, Failure) else (result,)
        if values is None:
            outcome = CallOutcome(failure=failures.EVICTED)
        else:
            outcome = CallOutcome(tuple(values), failure, run.options.content_type, run.options.streaming)
        known.outcome, known.ended_at, known.values = outcome, now, None
        known.size = outcome.size + CALL_BYTES
        self.bytes += known.size
        self._ended[request.key] = known
        self._kept[known] = None
        while self.bytes > self._max_bytes or len(self._kept) > self._max_kept:
            oldest = next(iter(self._kept))
            oldest.outcome = CallOutcome(failure=failures.EVICTED)
            self._drop(oldest)
        return outcome, waiting

    # -- callers that leave ----------------------------------------------------------------------------------------

    def leave(self, link: RouterPeer, ranges: Iterable[Range]) -> list[int]:
        """Repetitions with these run ids, both ends included, wait no more. Returns their run ids."""
        left: list[int] = []
        if link in self._waiting:
            for lo, hi in ranges:
                left += among(self._waiting.get(link, {}), lo, hi)
        for first in left:
            self._waiting[link][first].waiting.remove((link, first))
            self._leave(link, first)
        return left

    def close(self, link: RouterPeer) -> None:
        """Handles an ended link."""
        for first, known in self._waiting.pop(link, {}).items():
            known.waiting.remove((link, first))

    def owes(self, link: RouterPeer) -> bool:
        """Whether repetitions of the router wait."""
        return link in self._waiting

    # -- forgetting ------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Forgets calls that ended `keep_s` ago."""
        ended = self._ended
        while ended:
            key = next(iter(ended))
            known = ended[key]
            if known.ended_at + self._keep_s > now:
                return
            del ended[key], self._calls[key]
            self._drop(known)

    def _pending(self, run: ReplicaRun) -> RememberedCall | None:
        known = None if run.request is None else self._calls.get(run.request.key)
        is_it = known is not None and known.outcome is None and known.recipient == (run.link, run.first)
        return known if is_it else None

    def _drop(self, known: RememberedCall) -> None:
        if known in self._kept:
            del self._kept[known]
            self.bytes -= known.size

    def _leave(self, link: RouterPeer, first: int) -> None:
        of_link = self._waiting[link]
        del of_link[first]
        if not of_link:
            del self._waiting[link]
