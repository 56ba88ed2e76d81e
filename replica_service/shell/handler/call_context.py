"""The contexts of calls: what `slotmesh.context()` returns, and the isolation of context variables between calls.

Places: an executor sets `current_place`, from which `slotmesh.context()` makes a `CallContext`. Calls that do not wait
share one place; each call has its own if users' code uses contexts, so other handlers pay once per run. A place is
right in the call itself, in tasks and threads that the call started, and after its end; if it is ambiguous which of its
calls is meant, it raises.

Isolation: one task executes many calls in sequence, because a task per call would cost more than most calls. A context
variable that a call sets must not reach another caller's call, so `in_fresh_contexts` steps each call in a fresh copy
of the task's context, which user code never changes. Calls share a task only while none of them has kept it: when a
call ends, `TaskMarks` detects whether it did, and then the task executes no other call. All steps of one call run in
one context and under one `asyncio.current_task()`. The contexts of two calls share only what was in the task's context
before the first.

Owner: the executors of `async def` methods; those of `def` methods run each call with `Context.run`. Handlers read
contexts on any thread.
"""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context, copy_context
from hashlib import blake2b
from sys import getrefcount
from types import MappingProxyType, coroutine
from typing import Any, Final, TypeVar, cast, overload
from weakref import getweakrefcount

from google.protobuf.message import DecodeError

from replica_service.core.call_metadata import AnswerHeads
from replica_service.core.repeated_calls import key_of
from replica_service.core.runs import ReplicaRun, StartTurn
from replica_service.core.work import Part
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

Now = Callable[[], float]
ResultT = TypeVar("ResultT")

NEXT: Final = object()
"""Yielded to `in_fresh_contexts` between two calls: the next step runs in another context."""
_NO_TRACE = TraceContext("")
_AMBIGUOUS = "which call has started this is not known any more: call slotmesh.context() in the method itself"


def http_context(facts: bytes, heads: AnswerHeads | None, run_id: int) -> HttpContext | None:
    """Returns `slotmesh.context().http` of a call. `facts`: the ingress's `HttpRequest`; None if it is unreadable."""
    try:
        request = call_pb2.HttpRequest.FromString(facts)
    except DecodeError:
        return None
    can_respond = request.can_respond

    def put(status: int, headers: HeaderPairs) -> None:
        if not can_respond or heads is None:
            raise RuntimeError("this call has no HTTP response of its own: it came by a WebSocket, or by /v2")
        wire = call_pb2.HttpResponseHead(status=status)
        wire.headers.extend(call_pb2.HttpHeader(name=name, value=value) for name, value in headers)
        if not heads.put(run_id, wire.SerializeToString()):
            raise RuntimeError("the response has begun: set status and headers before the first value is yielded")

    return HttpContext(
        request.method,
        request.path,
        request.query,
        MappingProxyType({it.name: it.value for it in request.headers}),
        request_id=request.request_id,
        address=request.address,
        is_truncated=request.truncated,
        put=put,
    )


def context_of(run: ReplicaRun, index: int, now: float) -> CallContext:
    """Returns the context of the call with this index in its run."""
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
    if run.request is not None:
        endpoint, slot, caller, request_id = key_of(run, run.request)
        key = f"{endpoint}\0{slot.hex()}\0{caller}\0{request_id}"
        identity = blake2b(key.encode(), digest_size=32).hexdigest()
    if len(identity) > MAX_IDEMPOTENCY_KEY_CHARS:
        identity = blake2b(identity.encode(), digest_size=32).hexdigest()
    shard_key, affinity_key, trace, age_s, http = options.shard_key, options.affinity_key, _NO_TRACE, None, None
    if (arrival := run.arrival) is not None:
        run_id = run.first + index
        shard_key, trace = arrival.shard_key(run_id) or shard_key, arrival.trace(run_id)
        affinity_key = arrival.affinity_key(run_id) or affinity_key
        http = http_context(trace.http, arrival.heads, run_id) if trace.http else None
        age_s = None if arrival.waited_s is None else arrival.waited_s + now - run.arrived
    here = (host := run.link.outbox.issuer).own.current
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
        version=here.version,
        rank=here.rank,
        num_replicas=here.num_replicas,
        devices=here.devices,
        session_id=session_id,
        attempt=attempt,
        idempotency_key=identity,
        own_request_id=run.request.request_id if run.request is not None else "",
        shard_key=shard_key,
        affinity_key=affinity_key,
        model_id=options.model_id,
        is_shadow=arrival is not None and arrival.is_shadow,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
        http=http,
        ends_at=ends_at,
        arrived_at=arrived_at_of(age_s),
    )


class SinglePlace:
    """The place of one call."""

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


class TaskPlace:
    """The place of calls that a task executes in sequence: those of a run, or turns of one call each."""

    __slots__ = ("lo", "now", "run", "task", "turns", "values")

    def __init__(
        self,
        run: ReplicaRun,
        lo: int,
        values: Sequence[Any],
        now: Now,
        task: asyncio.Task[Any],
        turns: Sequence[StartTurn] | None = None,
    ) -> None:
        """`values`: results of the ended calls from `lo` on. The current call is the one after them.

        `turns`: those of the calls, if their runs differ.
        """
        self.run = run
        self.lo = lo
        self.values = values
        self.now = now
        self.turns = turns
        self.task: asyncio.Task[Any] | None = task
        """None once the task has left it."""

    @property
    def run_id(self) -> int:
        """The run id of the current call."""
        return self.run.first + self.lo + len(self.values)

    def context(self) -> CallContext:
        if self.values and not self._is_here():
            raise RuntimeError(_AMBIGUOUS)
        run, index = self.call()
        return context_of(run, index, self.now())

    def contexts(self) -> Sequence[CallContext]:
        return (self.context(),)

    def call(self) -> tuple[ReplicaRun, int]:
        """Returns the run and the index of the current call."""
        done = len(self.values)
        return self.run if self.turns is None else self.turns[done].run, self.lo + done

    def leave(self) -> None:
        """Ends the place. Contexts that calls leave behind still refer to it, so it drops the results."""
        self.task = None
        self.values = range(len(self.values))

    def _is_here(self) -> bool:
        """Whether the current code runs in the calls themselves, not in a task or thread that one of them started."""
        try:
            return self.task is not None and asyncio.current_task() is self.task
        except RuntimeError:  # called in a thread
            return False


class ThreadPlace:
    """The place of the call that the creating thread executes."""

    __slots__ = ("_thread", "index", "now", "run")

    def __init__(self, now: Now) -> None:
        self.run: ReplicaRun | None = None
        """None between two calls."""
        self.index = 0
        self.now = now
        self._thread = threading.get_ident()

    def context(self) -> CallContext:
        if self.run is None or threading.get_ident() != self._thread:
            raise RuntimeError(_AMBIGUOUS)
        return context_of(self.run, self.index, self.now())

    def contexts(self) -> Sequence[CallContext]:
        return (self.context(),)


class BatchContexts(Sequence[CallContext]):
    """The contexts of a batch's calls, each made on first access."""

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
    """Yields the payloads of these calls, and sets the place to the call whose payload was yielded last."""
    for index in range(lo, hi):
        current_place.set(SinglePlace(run, index, now))
        yield run.payloads[index]


def batch_place(parts: Sequence[Part], now: Now) -> BatchPlace:
    """Returns the place of a batch."""
    return BatchPlace(BatchContexts(parts, now))


@coroutine
def in_fresh_contexts(
    calls: Generator[Any, Any, ResultT] | Coroutine[Any, Any, ResultT], context: Context | None = None
) -> Generator[Any, Any, ResultT]:
    """Steps `calls` in a fresh copy of the current context, and in another copy after each NEXT that it yields.

    `context`: the first copy, if it was made before.
    """
    send = calls.send
    run = (context or copy_context()).run
    try:
        while True:
            waits_for = run(send, None)
            while waits_for is not NEXT:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 - raised in the call where it waits
                    waits_for = run(calls.throw, error)
                else:
                    waits_for = run(send, sent)
            run = copy_context().run
    except StopIteration as ended:
        result: ResultT = ended.value
        return result


def base_context() -> Context:
    """Returns the context that calls' contexts are copies of: the current one without decimal's, which is mutable."""
    base = Context()
    for variable, value in copy_context().items():
        if type(value) is not decimal.Context:
            base.run(variable.set, value)
    return base


class TaskMarks:
    """A snapshot of the current task before calls are executed in it, to detect calls that keep the task."""

    __slots__ = ("_name", "_references", "_weak_references", "task")

    def __init__(self) -> None:
        self.task = cast("Any", asyncio.current_task())
        self._name = self.task.get_name()
        self._references = getrefcount(self.task)
        self._weak_references = getweakrefcount(self.task)

    @property
    def are_left(self) -> bool:
        """Whether an ended call keeps a reference to the task or has changed it.

        To be called with the same number of local references to the task as when the snapshot was made.
        """
        return (
            getrefcount(self.task) != self._references
            or getweakrefcount(self.task) != self._weak_references
            or self.task.get_name() is not self._name
            or bool(self.task._callbacks)
        )
