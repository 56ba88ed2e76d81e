"""Driving a handler that yields: stepped while its callers keep up, paused while they do not, closed at the end.

Purpose: one drive for each generator, with all calls that it serves: one, or those of a batch. `Drive` has what the
kinds in `drives.py` share; these implement the stepping. A recipient takes the values of one call. Values are encoded
when they are yielded, because the handler may change them afterwards. A caller of a streaming call gets each value
immediately; other callers get all as one list at the end; values of no_reply calls are dropped.
Invariants: a generator is stepped by one task or thread at a time, in a context of its own. It does not begin while a
link is not fresh, after a deadline, or once it was cancelled. Once it has begun it is closed before its permit is
freed. A caller gets the outcome of its call once, after its last value, and is never sent more unacknowledged values
than the call's credit.
Owner: the generator executor, on its event loop. `_begin`, `_accept` and `Recipient.put` run where the handler runs; a
lock ensures that a call either begins or is cancelled before it begins. Counters that both sides read have one writer
each.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from replica_service.core.runs import ReplicaRun
from replica_service.shell.executors.batches import ends_call
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.handler.failures import HandlerErrors, too_large, unlistable, unsendable
from slotmesh.codec import EncodedList, carries_lists, encoder
from slotmesh.errors import Failure
from slotmesh.handlers.context import Place
from slotmesh.user_code import is_exception


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveEnvironment:
    """What all drives of a replica share."""

    sink: OutcomeSink
    errors: HandlerErrors
    now: Callable[[], float]
    context: Context
    """Copied for each handler's context."""
    lock: threading.Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorRun:
    """One run of a generator, for a drive."""

    method: str
    generate: Callable[[], Any]
    """Calls the method and returns the generator."""
    values_of: Callable[[Any], Sequence[Any] | Failure] | None
    """In a batch: splits a yielded value into one for each recipient. None for a single call."""
    recipients: Sequence[Recipient]
    place: Place
    """The source of `slotmesh.context()` in the handler."""
    may_begin: Callable[[], bool]
    """Called where the handler runs, right before it begins: whether it may."""
    enter: Callable[[], Callable[[], None] | None]
    """Called where the handler runs, right before it begins. Returns a function that is called there at the end."""
    then: Callable[[bool], None]
    """Called on the loop at the end: True if all callers have their outcomes, False if the generator did not begin."""


class Drive(ABC):
    """One generator. `start` is called once; `then` of the generator_run is called at the end."""

    def __init__(self, generator_run: GeneratorRun, environment: DriveEnvironment) -> None:
        self.recipients = generator_run.recipients
        self._generator_run = generator_run
        self._environment = environment
        self._only = generator_run.recipients[0] if generator_run.values_of is None else None
        self._delivers_values = any(recipient.takes_values for recipient in generator_run.recipients)
        self._has_begun = False
        self._leave: Callable[[], None] | None = None
        """Called when the generator is closed; returned by `GeneratorRun.enter`."""
        self._is_over = False
        """The generator is not stepped any more."""
        self._error: BaseException | None = None
        """Why the generator could not be made."""
        self._failure: Failure | None = None
        """The failure of its calls that have no failure of their own."""
        self._is_due = False
        """A call of `_deliver` is scheduled."""

    # -- on the loop -----------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Schedules the begin."""

    @abstractmethod
    def resume(self) -> None:
        """Continues a paused generator if there is credit, or to close it."""

    @abstractmethod
    def _stop(self) -> None:
        """Ends the generator as soon as it waits: no call takes its values any more."""

    @abstractmethod
    def end(self) -> asyncio.Future[None] | None:
        """Ends the drive without outcomes, because the process ends. Returns a future to await, if any."""

    def take(self, recipient: Recipient, count: int) -> None:
        """Applies a caller's acknowledgement of `count` values."""
        recipient.take(count)
        self.resume()

    def cancel(self, recipient: Recipient, unstarted: Failure | None, started: Failure) -> None:
        """Cancels the call with one of the two failures. `unstarted` None: a call that has not begun is not changed."""
        with self._environment.lock:
            if not recipient.is_wanting or self._is_over:
                return
            has_begun = self._has_begun
            recipient.verdict = started if has_begun else unstarted
        if not has_begun:
            return  # its outcome is delivered when it would have begun
        if self._is_wanted:
            self._deliver()
            self.resume()
        else:
            self._stop()

    def _deliver(self) -> None:
        """Sends pending values, and the outcomes of ended calls of a batch while others continue."""
        self._is_due = False  # before the first read: later values schedule it again
        sink = self._environment.sink
        for recipient in self.recipients:
            if recipient.is_delivered:
                continue
            recipient.deliver(sink)
            if not recipient.is_wanting and self._is_wanted:
                self._deliver_outcome(recipient, recipient.verdict)

    def _ended(self) -> None:
        """Delivers the outcomes after the generator was closed, or has not begun."""
        if not self._has_begun and self._is_wanted:
            self._generator_run.then(False)
            return
        sink = self._environment.sink
        for recipient in self.recipients:
            if recipient.is_delivered:
                continue
            recipient.deliver(sink)
            self._deliver_outcome(recipient, recipient.verdict or (None if recipient.has_ended else self._failure))
        self._generator_run.then(True)

    def _deliver_outcome(self, recipient: Recipient, failure: Failure | None) -> None:
        """Delivers the outcome of a call, after all its values."""
        recipient.is_delivered = True
        if failure is not None:
            self._environment.sink.failed(recipient.run, recipient.index, 1, failure)
        else:
            recipient.end(self._environment.sink)

    @property
    def _is_wanted(self) -> bool:
        """Whether a call takes more values."""
        if self._only is not None:
            return self._only.verdict is None
        return any(recipient.is_wanting for recipient in self.recipients)

    @property
    def _is_full(self) -> bool:
        """Whether the credit of a call is used."""
        if self._only is not None:
            return self._only.is_full
        return any(recipient.is_full for recipient in self.recipients if recipient.is_wanting)

    # -- where the handler runs ------------------------------------------------------------------------------------

    def _make(self) -> Any | None:
        """Returns the new generator, or None if it could not be made and `_error` is set."""
        try:
            return self._generator_run.generate()
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end more than its call
            self._error = error
            return None

    def _begin(self) -> bool:
        """Begins, if it may. Called when the generator is made, right before its first step."""
        with self._environment.lock:
            if not self._is_wanted or not self._generator_run.may_begin():
                self._is_over = True
                return False
            self._has_begun = True
        self._leave = self._generator_run.enter()
        return True

    def _accept(self, value: Any) -> bool:
        """Takes a yielded value. Returns whether a call takes more."""
        if (only := self._only) is not None:
            if only.verdict is None and (failure := only.put(value)) is not None:
                only.verdict = failure
            is_wanted = only.verdict is None
        else:
            is_wanted = self._split(value)
        if self._delivers_values and not self._is_due:
            self._is_due = True
            self._post(self._deliver)
        return is_wanted

    def _split(self, value: Any) -> bool:
        """Like `_accept`, for a batch: splits the value into one for each call."""
        split = self._generator_run.values_of
        values = split(value) if split is not None else (value,)
        if isinstance(values, Failure):
            self._failure = values
            return False
        for recipient, each in zip(self.recipients, values, strict=True):
            if recipient.is_wanting:
                self._put(recipient, each)
        return self._is_wanted

    def _put(self, recipient: Recipient, entry: Any) -> None:
        """Takes one call's entry of a batch: its value, its end, or the exception with which it fails."""
        if ends_call(entry):
            recipient.has_ended = True
        elif is_exception(entry):
            recipient.verdict = self._environment.errors.failure_of(entry, self._generator_run.method)
        else:
            recipient.verdict = recipient.put(entry) or recipient.verdict
        if not recipient.is_wanting:
            self._delivers_values = True  # its outcome is delivered before the others end

    def _left(self) -> None:
        """Leaves the handler's span after the generator was closed."""
        if self._leave is not None:
            self._leave()

    @abstractmethod
    def _post(self, callback: Callable[[], None]) -> None:
        """Schedules the callback on the loop."""

    def _raised(self, error: BaseException) -> None:
        """Fails the calls after the handler has raised, except cancelled ones."""
        if self._is_wanted:
            self._failure = self._environment.errors.failure_of(error, self._generator_run.method)
