"""Driving a handler that yields: stepped while its callers keep up, paused while they do not, closed at the end.

Purpose: one drive for each generator, with all calls that it serves: one, or those of a batch. `drives.py`
has how it is stepped; what they share is here.
Invariants: a generator is stepped by one task or thread at a time, in a context of its own; it does not begin while a
link is not fresh, past a deadline, or once it was cancelled; once it has begun it is closed before its permit comes
free; a caller gets the outcome of its call once, after its last value.
Owner: the generator executor, on its event loop. `_begin` and `_accept` run where the handler does; a lock makes sure
that a call either begins or is cancelled before it has.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from replica_service.shell.executors.batches import ends_call
from replica_service.shell.executors.generator_recipients import Recipient
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.handler.failures import HandlerErrors
from slotmesh.errors import Failure
from slotmesh.foreign import is_exception
from slotmesh.handlers.context import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all drives of a replica have in common."""

    sink: OutcomeSink
    errors: HandlerErrors
    now: Callable[[], float]
    context: Context
    """What the contexts of handlers are copies of."""
    lock: threading.Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one drive is to do."""

    method: str
    generate: Callable[[], Any]
    """Calls the method: makes the generator."""
    values_of: Callable[[Any], Sequence[Any] | Failure] | None
    """What it yields is split by this into a value for each recipient, in a batch; None where it is the value."""
    recipients: Sequence[Recipient]
    place: Place
    """What `slotmesh.context()` asks in the handler."""
    may_begin: Callable[[], bool]
    """Asked where the handler runs, right before it begins."""
    enter: Callable[[], Callable[[], None] | None]
    """Called where the handler runs, right before it begins; returns what is called there when it has ended."""
    then: Callable[[bool], None]
    """Called on the loop when it is over: all callers have their outcomes, or it has not begun (False)."""


class Drive(ABC):
    """One generator. `start` is called once; `then` of the script is called at the end."""

    def __init__(self, script: Script, stage: Stage) -> None:
        self.recipients = script.recipients
        self._script = script
        self._stage = stage
        self._only = script.recipients[0] if script.values_of is None else None
        self._are_heard = any(recipient.is_heard for recipient in script.recipients)
        self._has_begun = False
        self._leave: Callable[[], None] | None = None
        """What the script says is to be called when the generator is closed."""
        self._is_over = False
        """The generator is not stepped any more."""
        self._mistake: BaseException | None = None
        """Why the generator could not be made."""
        self._failure: Failure | None = None
        """Why all of its calls fail that have not failed by themselves."""
        self._is_due = False
        """`_deliver` will be called."""

    # -- on the loop -----------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Begins, soon."""

    @abstractmethod
    def resume(self) -> None:
        """Goes on if it was paused and need not be any more, be it to close."""

    @abstractmethod
    def _stop(self) -> None:
        """Ends the generator as soon as it waits: no call wants values of it any more."""

    @abstractmethod
    def end(self) -> asyncio.Future[None] | None:
        """The process ends: so does this, without a word. Returns what to wait for."""

    def take(self, recipient: Recipient, count: int) -> None:
        """A caller has taken so many values."""
        recipient.take(count)
        self.resume()

    def cancel(self, recipient: Recipient, unstarted: Failure | None, started: Failure) -> None:
        """The call is taken back: it ends with one of the two failures. None leaves one that has not begun alone."""
        with self._stage.lock:
            if not recipient.is_wanting or self._is_over:
                return
            has_begun = self._has_begun
            recipient.verdict = started if has_begun else unstarted
        if not has_begun:
            return  # it gets its outcome when its turn would have come
        if self._is_wanted:
            self._deliver()
            self.resume()
        else:
            self._stop()

    def _deliver(self) -> None:
        """Sends values that have come. Calls of a batch that have ended get their outcomes while others go on."""
        self._is_due = False  # before the first look: values that come later set it again
        sink = self._stage.sink
        for recipient in self.recipients:
            if recipient.is_told:
                continue
            recipient.deliver(sink)
            if not recipient.is_wanting and self._is_wanted:
                self._tell(recipient, recipient.verdict)

    def _ended(self) -> None:
        """The generator is closed, or has not begun: callers get the outcomes of their calls."""
        if not self._has_begun and self._is_wanted:
            self._script.then(False)
            return
        sink = self._stage.sink
        for recipient in self.recipients:
            if recipient.is_told:
                continue
            recipient.deliver(sink)
            self._tell(recipient, recipient.verdict or (None if recipient.has_ended else self._failure))
        self._script.then(True)

    def _tell(self, recipient: Recipient, failure: Failure | None) -> None:
        """The caller, which has all values, gets the outcome of its call."""
        recipient.is_told = True
        if failure is not None:
            self._stage.sink.failed(recipient.run, recipient.index, 1, failure)
        else:
            recipient.end(self._stage.sink)

    @property
    def _is_wanted(self) -> bool:
        """Whether a caller wants more values."""
        if self._only is not None:
            return self._only.verdict is None
        return any(recipient.is_wanting for recipient in self.recipients)

    @property
    def _is_full(self) -> bool:
        """Whether it is as far ahead of a caller as it may be."""
        if self._only is not None:
            return self._only.is_full
        return any(recipient.is_full for recipient in self.recipients if recipient.is_wanting)

    # -- where the handler runs ------------------------------------------------------------------------------------

    def _make(self) -> Any | None:
        """The generator, made and not begun; None where it could not be made, and `_mistake` says why."""
        try:
            return self._script.generate()
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end more than its call
            self._mistake = error
            return None

    def _begin(self) -> bool:
        """Whether it begins: from here on it has. Asked when the generator is made, right before its first step."""
        with self._stage.lock:
            if not self._is_wanted or not self._script.may_begin():
                self._is_over = True
                return False
            self._has_begun = True
        self._leave = self._script.enter()
        return True

    def _accept(self, value: Any) -> bool:
        """Takes a value that was yielded. Returns whether more are wanted."""
        if (only := self._only) is not None:
            if only.verdict is None and (failure := only.put(value)) is not None:
                only.verdict = failure
            is_wanted = only.verdict is None
        else:
            is_wanted = self._split(value)
        if self._are_heard and not self._is_due:
            self._is_due = True
            self._post(self._deliver)
        return is_wanted

    def _split(self, value: Any) -> bool:
        """The same for a batch, where it is a value for each."""
        split = self._script.values_of
        values = split(value) if split is not None else (value,)
        if isinstance(values, Failure):
            self._failure = values
            return False
        for recipient, each in zip(self.recipients, values, strict=True):
            if recipient.is_wanting:
                self._put(recipient, each)
        return self._is_wanted

    def _put(self, recipient: Recipient, entry: Any) -> None:
        """Takes the value of one call of a batch, or in its place its end, or the exception that it has raised."""
        if ends_call(entry):
            recipient.has_ended = True
        elif is_exception(entry):
            recipient.verdict = self._stage.errors.failure_of(entry, self._script.method)
        else:
            recipient.verdict = recipient.put(entry) or recipient.verdict
        if not recipient.is_wanting:
            self._are_heard = True  # its caller need not wait for the others

    def _left(self) -> None:
        """The generator is closed."""
        if self._leave is not None:
            self._leave()

    @abstractmethod
    def _post(self, callback: Callable[[], None]) -> None:
        """Has the loop call this soon."""

    def _raised(self, error: BaseException) -> None:
        """The handler has raised: its calls fail, but for those that had been taken back."""
        if self._is_wanted:
            self._failure = self._stage.errors.failure_of(error, self._script.method)
