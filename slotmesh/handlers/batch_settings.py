"""A batch method's settings while it is in use, and the state of its batches. Pure: the replica's core reads it.

Purpose: `@batch` attaches a `BatchControl` to a function, so that a handler can change the settings and inspect its
batches, and the replica can follow.
Invariants: each setting is one attribute, replaced as a whole, so any thread may set it and any other read it without a
lock; an invalid value changes nothing. Settings belong to the function: to all handlers of the class in this process,
which in a replica is one.
Owner: the decorated function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from slotmesh.spec.handler_settings import (
    BatchSettings,
    check_batch_wait_timeout_s,
    checked_max_batch_size,
    checked_max_concurrent_batches,
)

FirstT = TypeVar("FirstT", contravariant=True)
ReturnedT = TypeVar("ReturnedT", covariant=True)
P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """A batch that the method is executing."""

    calls: int
    running_s: float
    """Seconds since it was handed to the method."""
    stack: str
    """The current line of the method, as in a traceback; empty if it cannot be determined now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """The calls of a batch method, at one moment."""

    is_alive: bool
    """Whether a replica cuts batches of it."""
    waiting: int
    """Calls that gather for the next batch."""
    running: Sequence[RunningBatch]
    """In the order in which they began."""


class BatchHost(Protocol):
    """A replica that executes batches of the method. Called on any thread."""

    def batch_state(self) -> BatchState: ...

    def settings_changed(self) -> None: ...


class BatchControl:
    """The current settings of one batch method; getters, setters and `batch_state` are attributes of the method."""

    __slots__ = ("_hosts", "batch_size_fn", "batch_wait_timeout_s", "max_batch_size", "max_concurrent_batches", "whole")

    def __init__(self, settings: BatchSettings) -> None:
        self.max_batch_size = settings.max_batch_size
        self.batch_wait_timeout_s = settings.batch_wait_timeout_s
        self.max_concurrent_batches = settings.max_concurrent_batches
        self.batch_size_fn = settings.batch_size_fn
        self.whole: Callable[..., Any] | None = None
        """The function that takes only whole batches, if the decorated one takes single items, too."""
        self._hosts: tuple[BatchHost, ...] = ()

    @property
    def settings(self) -> BatchSettings:
        """The current settings."""
        return BatchSettings(
            max_batch_size=self.max_batch_size,
            batch_wait_timeout_s=self.batch_wait_timeout_s,
            max_concurrent_batches=self.max_concurrent_batches,
            batch_size_fn=self.batch_size_fn,
        )

    # -- for handlers ----------------------------------------------------------------------------------------------

    def get_max_batch_size(self) -> int:
        """Calls in a batch, or its weight, at most."""
        return self.max_batch_size

    def get_batch_wait_timeout_s(self) -> float:
        """Seconds that the first call of a batch waits for others."""
        return self.batch_wait_timeout_s

    def get_max_concurrent_batches(self) -> int:
        """Batches that run at the same time, at most."""
        return self.max_concurrent_batches

    def set_max_batch_size(self, max_batch_size: float) -> None:
        """Limits a batch, from the next one on, to this number of calls, or this weight; a whole number.

        Raises:
            TypeError, ValueError: an invalid size; nothing has changed.
        """
        self.max_batch_size = checked_max_batch_size(max_batch_size, is_weight=self.batch_size_fn is not None)
        self._tell()

    def set_batch_wait_timeout_s(self, batch_wait_timeout_s: float) -> None:
        """Sets how long the first call of a batch, from the next one on, waits for others.

        Raises:
            TypeError, ValueError: an invalid time; nothing has changed.
        """
        check_batch_wait_timeout_s(batch_wait_timeout_s)
        self.batch_wait_timeout_s = batch_wait_timeout_s
        self._tell()

    def set_max_concurrent_batches(self, max_concurrent_batches: float) -> None:
        """Limits the batches that run at the same time, from now on; if more are running, they end normally.

        Raises:
            TypeError, ValueError: an invalid number; nothing has changed.
        """
        self.max_concurrent_batches = checked_max_concurrent_batches(max_concurrent_batches)
        self._tell()

    def batch_state(self) -> BatchState:
        """What waits and what runs, since when, and where. Inspects stacks: for diagnosis, not for each call."""
        states = [host.batch_state() for host in self._hosts]
        return BatchState(
            is_alive=any(state.is_alive for state in states),
            waiting=sum(state.waiting for state in states),
            running=tuple(batch for state in states for batch in state.running),
        )

    # -- for the replica -------------------------------------------------------------------------------------------

    def attach(self, host: BatchHost) -> None:
        """The replica follows the settings from now on."""
        self._hosts = (*self._hosts, host)

    def detach(self, host: BatchHost) -> None:
        self._hosts = tuple(each for each in self._hosts if each is not host)

    def _tell(self) -> None:
        for host in self._hosts:
            host.settings_changed()


class Takes1(Protocol[A, T_co]):
    """A batch method with one list, that is awaited; for type checkers."""

    @property
    def _batch_parameters(self) -> Callable[[list[A]], Awaitable[Sequence[T_co]]]: ...


class Takes2(Protocol[A, B, T_co]):
    """With two lists."""

    @property
    def _batch_parameters(self) -> Callable[[list[A], list[B]], Awaitable[Sequence[T_co]]]: ...


class Takes3(Protocol[A, B, C, T_co]):
    """With three lists."""

    @property
    def _batch_parameters(self) -> Callable[[list[A], list[B], list[C]], Awaitable[Sequence[T_co]]]: ...


class BatchSetters(Protocol):
    """What `@batch` adds to a function."""

    def get_max_batch_size(self) -> int: ...
    def get_batch_wait_timeout_s(self) -> float: ...
    def get_max_concurrent_batches(self) -> int: ...
    def set_max_batch_size(self, max_batch_size: float) -> None: ...
    def set_batch_wait_timeout_s(self, batch_wait_timeout_s: float) -> None: ...
    def set_max_concurrent_batches(self, max_concurrent_batches: float) -> None: ...
    def batch_state(self) -> BatchState: ...


class BoundBatchMethod(BatchSetters, Protocol[P, ReturnedT]):
    """A batch method of an instance, for type checkers: takes whole batches; if it is awaited, also single items."""

    @property
    def _batch_parameters(self) -> Callable[P, ReturnedT]:
        """Its parameters, for the overloads; it is no attribute of the method."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnedT: ...
    @overload
    def __call__(self: Takes1[A, T], a: A, /) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self: Takes2[A, B, T], a: A, b: B, /) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self: Takes3[A, B, C, T], a: A, b: B, c: C, /) -> Coroutine[Any, Any, T]: ...


class BatchFunction(BatchSetters, Protocol[FirstT, P, ReturnedT]):
    """A function decorated with `@batch`, for type checkers: the function itself, with what `@batch` adds to it."""

    __name__: str
    __qualname__: str

    @overload
    def __call__(self, first: FirstT, /, *args: P.args, **kwargs: P.kwargs) -> ReturnedT: ...
    @overload
    def __call__(self, *item: Any, **named: Any) -> Any: ...
    @overload
    def __get__(self, instance: None, owner: type) -> BatchFunction[FirstT, P, ReturnedT]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BoundBatchMethod[P, ReturnedT]: ...


Batchable = Callable[Concatenate[FirstT, P], ReturnedT]
"""What `@batch` decorates: its first parameter is `self`, or the list of items."""
