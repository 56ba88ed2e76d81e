"""Memory of the outcomes of calls with a request id, and of values of such calls that still run, by caller.

Invariants: `bytes` is the sum of all callers, and at most `max_bytes` after each change. If it would be more, the
caller that holds most (within a factor of two) loses its oldest values first, so that no caller drives out the others.
What one event drops is bounded by the memory that it has added: each outcome has its own.
Owner: `repeated_calls.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import NamedTuple, TypeAlias

from replica_service.core.runs import RouterPeer
from slotmesh.calls.result_envelopes import remarked
from slotmesh.errors import Failure

OUTCOME_BYTES = 256
"""Memory of a kept outcome besides its values and the texts of its failure."""
VALUE_BYTES = 48
"""Memory of a value besides its own bytes."""
FAILURE_BYTES = 320
"""Memory of a failure besides its texts."""


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
    mark: bytes = b""
    """The HTTP mark of the executed call, behind which its values may have a head."""

    def for_mark(self, mark: bytes) -> CallOutcome:
        """The outcome for a repetition, which an HTTP front with another mark may have sent."""
        if mark == self.mark or not self.mark:
            return self
        return self._replace(values=[remarked(each, self.mark, mark) for each in self.values], mark=mark)

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return sum(map(len, self.values))


def bytes_of_values(values: Iterable[bytes]) -> int:
    """Returns the memory of values."""
    return sum(len(value) + VALUE_BYTES for value in values)


def bytes_of_failure(failure: Failure | None) -> int:
    """Returns the memory of a failure."""
    if failure is None:
        return 0
    texts = (failure.message, *failure.metadata, *failure.metadata.values())
    return FAILURE_BYTES + sum(map(getsizeof, texts)) + len(failure.trailers)


class RememberedCaller:
    """What is remembered of the calls of one caller. Compared by identity."""

    __slots__ = ("bytes", "caller", "calls", "held", "size_bits")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.calls = 0
        """Remembered calls, pending ones included."""
        self.bytes = 0
        self.held: OrderedDict[RememberedCall, None] = OrderedDict()
        """Calls with values or a kept outcome, oldest first."""
        self.size_bits = 0


class RememberedCall:
    """One call, pending or ended. Compared by identity."""

    __slots__ = ("digest", "ended_at", "outcome", "recipient", "share", "size", "values", "waiting")

    def __init__(self, digest: bytes, recipient: LinkedCall, share: RememberedCaller) -> None:
        self.digest = digest
        self.recipient = recipient
        """Of the call that runs. Its own outcome is not delivered from here."""
        self.share = share
        """Of its caller."""
        self.waiting: dict[LinkedCall, bytes] = {}
        """Repetitions, in the order of their arrival, with their HTTP marks."""
        self.values: list[bytes] | None = []
        """Values yielded so far; None if they are too many to be kept."""
        self.size = 0
        """Memory of the values, or of the kept outcome; bytes."""
        self.outcome: CallOutcome | None = None
        """None: pending."""
        self.ended_at = 0.0


class RequestMemory:
    """The shares of all callers."""

    __slots__ = ("_by_size", "_max_bytes", "_shares", "bytes")

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._shares: dict[str, RememberedCaller] = {}
        """Of callers with remembered calls, by their names."""
        self._by_size: list[dict[RememberedCaller, None]] = [{} for _ in range(max_bytes.bit_length() + 2)]
        """Shares with bytes, by the bit length of these; the last ones have more."""

    def share_of(self, caller: str) -> RememberedCaller | None:
        """Returns the share of a caller; None if no call of it is remembered."""
        return self._shares.get(caller)

    def add(self, caller: str) -> RememberedCaller:
        """Counts a new call, and returns the share of its caller."""
        if (share := self._shares.get(caller)) is None:
            share = self._shares[caller] = RememberedCaller(caller)
        share.calls += 1
        return share

    def remove(self, known: RememberedCall) -> None:
        """Discounts a call that is forgotten."""
        self.hold(known, 0)
        share = known.share
        share.calls -= 1
        if not share.calls:
            del self._shares[share.caller]

    def hold(self, known: RememberedCall, size: int) -> None:
        """Sets the bytes that a call holds."""
        share, change = known.share, size - known.size
        if size:
            share.held[known] = None
        else:
            share.held.pop(known, None)
        known.size = size
        self._change(share, change)

    def excess(self) -> list[RememberedCall]:
        """Returns calls whose values are to be dropped, so that the bound is kept. They hold nothing any more."""
        dropped: list[RememberedCall] = []
        while self.bytes > self._max_bytes:
            share = next(iter(next(each for each in reversed(self._by_size) if each)))
            freed, most = 0, self.bytes - self._max_bytes
            while share.held and freed < most and share.bytes - freed >= share.bytes // 2:
                known, _ = share.held.popitem(last=False)
                freed += known.size
                known.size = 0
                dropped.append(known)
            self._change(share, -freed)
        return dropped

    def _change(self, share: RememberedCaller, change: int) -> None:
        self.bytes += change
        share.bytes += change
        bits = min(share.bytes.bit_length(), len(self._by_size) - 1)
        if bits != share.size_bits:
            self._by_size[share.size_bits].pop(share, None)
            if bits:
                self._by_size[bits][share] = None
            share.size_bits = bits
