"""The contexts of calls for `slotmesh.context()`, made from their runs, by the place that each executor keeps.

Purpose: one place for many calls that do not wait, one for each call where users' code asks for contexts
(`context_use`): handlers that do not ask pay once a run.
Invariants: a place is right in the call itself, in tasks and threads that it has started, and after its end; where it
cannot know which of its calls is meant, it raises.
Owner: the executors set `current_place`; handlers read, on any thread.
"""

from __future__ import annotations

import asyncio
import decimal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context, copy_context
from hashlib import blake2b
from sys import getrefcount
from types import MappingProxyType, coroutine
from typing import Any, Final, TypeVar, cast, overload
from weakref import getweakrefcount

from google.protobuf.message import DecodeError

from replica_service.core.calls.call_metadata import AnswerHeads
from replica_service.core.calls.commands import Part
from replica_service.core.calls.runs import ReplicaRun
from slotmesh.calls.trace_context import TraceContext
from slotmesh.handlers.context import (
    MAX_IDEMPOTENCY_KEY_CHARS,
    BatchPlace,
    CallContext,
    HeaderPairs,
    HttpContext,
    arrived_at_of,
    current_place,
    deadline_of,
)
from slotmesh.v1 import call_pb2

# `slotmesh.context().http`, made of what an HTTP front says of a call.


def http_context(facts: bytes, heads: AnswerHeads | None, run_id: int) -> HttpContext | None:
    """That of one call, of what its front says of the request; None where that is nothing that can be read."""
    try:
        said = call_pb2.HttpRequest.FromString(facts)
    except DecodeError:
        return None
    can_respond = said.can_respond

    def put(status: int, headers: HeaderPairs) -> None:
        if not can_respond or heads is None:
            raise RuntimeError("this call has no HTTP answer of its own: it came by a WebSocket, or by /v2")
        wire = call_pb2.HttpResponseHead(status=status)
        wire.headers.extend(call_pb2.HttpHeader(name=name, value=value) for name, value in headers)
        if not heads.put(run_id, wire.SerializeToString()):
            raise RuntimeError("the answer has begun: set status and headers before the first value is yielded")

    return HttpContext(
        said.method,
        said.path,
        said.query,
        MappingProxyType({it.name: it.value for it in said.headers}),
        request_id=said.request_id,
        address=said.address,
        is_truncated=said.truncated,
        put=put,
    )


Now = Callable[[], float]

_NO_TRACE = TraceContext("")
_CANNOT_BE_TOLD = "which call has started this cannot be told any more: ask slotmesh.context() in the method itself"


def context_of(run: ReplicaRun, index: int, now: float) -> CallContext:
    """The context of the call with this index in its run."""
    options, record, origin = run.options, run.record, run.origin
    deadline, ends_at = deadline_of(run.deadline - now)
    session_id, attempt = "", 0
    if record is not None:
        session_id, attempt = record.session_id, record.attempt
        call_id = str(record.call_ids[index])
        identity = f"{session_id}-{call_id}"
    else:
        call_id = str(run.first + index)
        identity = f"{run.link.stream_id}-{call_id}"
        if origin is not None:
            attempt = origin.attempt
            identity = f"{origin.stream_id}-{origin.run_ids[index]}"
    if len(identity) > MAX_IDEMPOTENCY_KEY_CHARS:
        identity = blake2b(identity.encode(), digest_size=32).hexdigest()
    shard_key, trace, age_s, http = options.shard_key, _NO_TRACE, None, None
    if (arrival := run.arrival) is not None:
        run_id = run.first + index
        shard_key, trace = arrival.shard_key(run_id) or shard_key, arrival.trace(run_id)
        http = http_context(trace.http, arrival.heads, run_id) if trace.http else None
        age_s = None if arrival.waited_s is None else arrival.waited_s + now - run.arrived
    host = run.link.outbox.issuer
    return CallContext(
        call_id=call_id,
        endpoint=run.endpoint,
        method=options.method,
        metadata=MappingProxyType(options.metadata),
        deadline=deadline,
        ordering_key=run.ordering_key,
        partition=run.partition if run.ordering_key else None,
        owner_epoch=run.owner_epoch if run.ordering_key else None,
        replica_id=host.replica_id,
        backend=host.backend,
        session_id=session_id,
        attempt=attempt,
        idempotency_key=identity,
        shard_key=shard_key,
        is_shadow=arrival is not None and arrival.is_shadow,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
        http=http,
        ends_at=ends_at,
        arrived_at=arrived_at_of(age_s),
    )


class SinglePlace:
    """In one call."""

    __slots__ = ("_context", "index", "now", "run")

    def __init__(self, run: ReplicaRun, index: int, now: Now) -> None:
        self.run = run
        self.index = index
        self.now = now
        self._context: CallContext | None = None

    def context(self) -> CallContext:
        if self._context is None:
            self._context = context_of(self.run, self.index, self.now())
        return self._context

    def contexts(self) -> Sequence[CallContext]:
        return (self.context(),)


class SharedPlace(ABC):
    """In one of the calls of a run that are executed one after another, in one task or thread."""

    __slots__ = ("lo", "now", "run", "values")

    def __init__(self, run: ReplicaRun, lo: int, values: Sequence[Any], now: Now) -> None:
        """`values` are those of the calls from `lo` on that have ended; a call that waits is the last one."""
        self.run = run
        self.lo = lo
        self.values = values
        self.now = now

    @property
    def run_id(self) -> int:
        """Of the call that is executed."""
        return self.run.first + self.lo + len(self.values)

    def context(self) -> CallContext:
        done = len(self.values)
        if done and not self.is_here():
            raise RuntimeError(_CANNOT_BE_TOLD)
        return context_of(self.run_of(done), self.lo + done, self.now())

    def contexts(self) -> Sequence[CallContext]:
        return (self.context(),)

    def run_of(self, done: int) -> ReplicaRun:
        """The run of the call behind so many."""
        del done
        return self.run

    @abstractmethod
    def is_here(self) -> bool:
        """Whether it is asked from where the calls are executed, rather than from what one of them has started."""


class TaskPlace(SharedPlace):
    """In one of the calls that a task executes: the one behind those whose values it has."""

    __slots__ = ("task",)

    def __init__(self, run: ReplicaRun, lo: int, values: Sequence[Any], now: Now, task: asyncio.Task[Any]) -> None:
        super().__init__(run, lo, values, now)
        self.task: asyncio.Task[Any] | None = task
        """None once the task has left it."""

    def leave(self) -> None:
        """The task has left it. Contexts that calls leave behind keep the place, which must not keep results."""
        self.task = None
        self.values = range(len(self.values))

    def is_here(self) -> bool:
        try:
            return self.task is not None and asyncio.current_task() is self.task
        except RuntimeError:  # asked in a thread
            return False


class ThreadPlace:
    """In the call that the thread executes that has made it."""

    __slots__ = ("_thread", "index", "now", "run")

    def __init__(self, now: Now) -> None:
        self.run: ReplicaRun | None = None
        """None between two calls."""
        self.index = 0
        self.now = now
        self._thread = threading.get_ident()

    def context(self) -> CallContext:
        if self.run is None or threading.get_ident() != self._thread:
            raise RuntimeError(_CANNOT_BE_TOLD)
        return context_of(self.run, self.index, self.now())

    def contexts(self) -> Sequence[CallContext]:
        return (self.context(),)


class BatchContexts(Sequence[CallContext]):
    """Those of the calls of a batch, each made when it is looked at."""

    def __init__(self, parts: Sequence[Part], now: Now) -> None:
        self._parts = parts
        self._now = now
        self._made: dict[int, CallContext] = {}

    def __len__(self) -> int:
        return sum(hi - lo for _, lo, hi in self._parts)

    @overload
    def __getitem__(self, at: int) -> CallContext: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[CallContext]: ...

    def __getitem__(self, at: int | slice) -> CallContext | Sequence[CallContext]:
        places = range(len(self))[at]
        return self._make(places) if isinstance(places, int) else tuple(map(self._make, places))

    def _make(self, at: int) -> CallContext:
        made = self._made.get(at)
        if made is None:
            left = at
            for run, lo, hi in self._parts:
                if left < hi - lo:
                    made = self._made[at] = context_of(run, lo + left, self._now())
                    break
                left -= hi - lo
            else:
                raise IndexError(at)
        return made


def marking(run: ReplicaRun, lo: int, hi: int, now: Now) -> Iterator[bytes]:
    """The payloads of these calls. While iterating the place is in the call whose payload came last."""
    for index in range(lo, hi):
        current_place.set(SinglePlace(run, index, now))
        yield run.payloads[index]


def batch_place(parts: Sequence[Part], now: Now) -> BatchPlace:
    """In a batch of these calls."""
    return BatchPlace(BatchContexts(parts, now))


# Gives each call a context and a task of its own, although one task executes many calls, one after another.
#
# Purpose: a context variable that a call sets, and a task that it keeps, must not reach another caller's call. A task
# for
# each call would cost more than most calls. `islands` steps the calls itself, each in a fresh copy of the task's
# context,
# which user code never changes. A task is shared by calls only while none of them has kept it: `TaskMarks` finds that
# out
# when a call has ended, and the task then executes no other one.
# Invariants: all steps of one call run in one context, and under one `asyncio.current_task()`; nothing is shared by the
# contexts of two calls but what was in the task's context before the first.
# Owner: the executors of `async def` methods. Those of `def` methods run each call by `Context.run`.

ResultT = TypeVar("ResultT")

NEXT: Final = object()
"""What is yielded to `islands` between two calls: from there on it is another context."""


@coroutine
def islands(
    calls: Generator[Any, Any, ResultT] | Coroutine[Any, Any, ResultT], context: Context | None = None
) -> Generator[Any, Any, ResultT]:
    """Runs it in a fresh copy of the current context, and in another one whenever it yields NEXT.

    `context`: the first one of these, if it was made before.
    """
    send = calls.send
    run = (context or copy_context()).run
    try:
        while True:
            waits_for = run(send, None)
            while waits_for is not NEXT:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 - the call gets it where it waits
                    waits_for = run(calls.throw, error)
                else:
                    waits_for = run(send, sent)
            run = copy_context().run
    except StopIteration as ended:
        result: ResultT = ended.value
        return result


def base_context() -> Context:
    """What contexts of calls are copies of: the current one, without decimal's, which is changed in place."""
    base = Context()
    for variable, value in copy_context().items():
        if type(value) is not decimal.Context:
            base.run(variable.set, value)
    return base


class TaskMarks:
    """What the current task looks like before calls are executed in it."""

    __slots__ = ("_name", "_references", "_weak_references", "task")

    def __init__(self) -> None:
        self.task = cast("Any", asyncio.current_task())
        self._name = self.task.get_name()
        self._references = getrefcount(self.task)
        self._weak_references = getweakrefcount(self.task)

    @property
    def are_left(self) -> bool:
        """Whether a call that has ended keeps the task, or has left something at it.

        Asked where no local variable has the task that had it when this was made.
        """
        return (
            getrefcount(self.task) != self._references
            or getweakrefcount(self.task) != self._weak_references
            or self.task.get_name() is not self._name
            or bool(self.task._callbacks)
        )
