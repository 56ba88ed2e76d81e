"""Recipients of the values that a handler yields: one for each call, of three kinds.

Purpose: values are encoded when they are yielded, because the handler may change them afterwards. A caller of a
streaming call gets each value immediately; other callers get all as one list at the end; values of no_reply calls are
dropped.
Invariants: `put` is called by the drive that steps the handler, on any thread, all else on the event loop; counters
that both sides read have one writer each. A caller is never sent more unacknowledged values than the call's credit.
Owner: the drive (`drives.py`) that the call is part of.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from replica_service.core.calls.runs import ReplicaRun
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.handler.failures import too_large, unlistable, unsendable
from slotmesh.codec import EncodedList, carries_lists, encoder
from slotmesh.errors import Failure


class Recipient:
    """One call of a handler that yields. This one drops its values."""

    __slots__ = ("has_ended", "index", "is_delivered", "run", "verdict")

    takes_values = False
    """Whether each value is delivered when it is yielded."""

    def __init__(self, run: ReplicaRun, index: int) -> None:
        self.run = run
        self.index = index
        """Index of its payload in the run."""
        self.verdict: Failure | None = None
        """The failure of the call, if it has failed; it takes no more values."""
        self.has_ended = False
        """In a batch: the handler has ended this call successfully."""
        self.is_delivered = False
        """Its outcome was delivered."""

    @property
    def is_wanting(self) -> bool:
        """Whether it takes more values."""
        return self.verdict is None and not self.has_ended

    @property
    def is_full(self) -> bool:
        """Whether the handler has used the call's credit."""
        return False

    def put(self, _value: Any) -> Failure | None:
        """Takes a yielded value. Returns the failure of the call if the value is invalid."""
        return None

    def deliver(self, sink: OutcomeSink) -> None:
        """Sends the values that were put since the last call."""

    def take(self, count: int) -> None:
        """Applies the caller's acknowledgement of `count` values."""

    def end(self, sink: OutcomeSink) -> None:
        """Delivers the successful end of the call."""
        sink.streamed(self.run, self.index)


class ListRecipient(Recipient):
    """A call whose values become one list."""

    __slots__ = ("_encode", "_values")

    def __init__(self, run: ReplicaRun, index: int) -> None:
        super().__init__(run, index)
        self._encode = encoder(run.options.content_type)
        self._values = EncodedList(run.options.content_type)

    def put(self, value: Any) -> Failure | None:
        try:
            self._values.append(self._encode(value))
        except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
            return unsendable(error)
        limit = self.run.max_result_bytes
        return too_large(self._values.size, limit) if self._values.size > limit else None

    def end(self, sink: OutcomeSink) -> None:
        sink.payloads(self.run, self.index, (self._values.encoded(),))


class StreamRecipient(Recipient):
    """A call whose caller gets each value when it is yielded."""

    __slots__ = (
        "_bytes_put",
        "_bytes_taken",
        "_credit_bytes",
        "_credit_values",
        "_encode",
        "_limit",
        "_put",
        "_ready",
        "_sizes",
        "_taken",
    )

    takes_values = True

    def __init__(self, run: ReplicaRun, index: int) -> None:
        super().__init__(run, index)
        self._encode = encoder(run.options.content_type)
        self._limit = run.max_result_bytes
        self._credit_values, self._credit_bytes = run.options.credit
        self._ready: deque[bytes] = deque()
        """Values that were not delivered yet."""
        self._sizes: deque[int] = deque()
        """Bytes of each value that is not acknowledged yet."""
        self._put = self._bytes_put = 0
        """All values; written by the thread that steps the handler."""
        self._taken = self._bytes_taken = 0
        """Acknowledged values; written on the loop."""

    @property
    def is_full(self) -> bool:
        put, nbytes = self._put - self._taken, self._bytes_put - self._bytes_taken
        return put >= self._credit_values or nbytes >= self._credit_bytes

    def put(self, value: Any) -> Failure | None:
        try:
            payload = self._encode(value)
        except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
            return unsendable(error)
        size = len(payload)
        if size > self._limit:
            return too_large(size, self._limit)
        if not self._put and (arrival := self.run.arrival) is not None and arrival.heads is not None:
            payload = arrival.heads.begin(self.run.first + self.index, payload)
        self._sizes.append(size)
        self._put += 1
        self._bytes_put += size
        self._ready.append(payload)
        return None

    def deliver(self, sink: OutcomeSink) -> None:
        ready = self._ready
        if not ready:
            return
        payloads = [ready.popleft() for _ in range(len(ready))]
        sink.values(self.run, self.index, payloads)

    def take(self, count: int) -> None:
        sizes = self._sizes
        count = max(0, min(count, len(sizes)))
        self._bytes_taken += sum(sizes.popleft() for _ in range(count))
        self._taken += count


def recipient_of(run: ReplicaRun, index: int) -> Recipient:
    """Returns the recipient for the call's options, which `failure_of` has accepted."""
    options = run.options
    if options.no_reply:
        return Recipient(run, index)
    return StreamRecipient(run, index) if options.streaming else ListRecipient(run, index)


def failure_of(run: ReplicaRun) -> Failure | None:
    """Returns the failure of calls whose options do not permit a handler that yields; None if they do."""
    options = run.options
    if options.no_reply or options.streaming or carries_lists(options.content_type):
        return None
    return unlistable(options.method, options.content_type)
