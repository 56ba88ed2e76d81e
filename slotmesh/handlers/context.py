"""The call that a handler is executing: `slotmesh.context()`, in batch methods `contexts()`.

Purpose: executors keep the place that they execute (a `Place`); the context of a call, and its HTTP request, are made
only when users' code requests them, so other handlers pay nothing.
Invariants: tasks that a handler starts, and other code that runs in a copy of its context, get the context of the call
that started them, also after its end; a place that cannot determine which of several calls is meant raises, and is
never wrong.
Owner: the replica sets `current_place`; tests of handlers may, by `slotmesh.testing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from types import MappingProxyType
from typing import Final, Protocol

from slotmesh.calls.key_hash import partition_of
from slotmesh.calls.result_envelopes import head_problem
from slotmesh.calls.trace_context import REQUEST_ID

HeaderPairs = tuple[tuple[str, str], ...]
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
PutHead = Callable[[int, HeaderPairs], None]
"""Takes status and headers. Raises RuntimeError if the response has begun."""


class HttpContext:
    """The HTTP request that a call came by, and its response as far as the handler sets it: `slotmesh.context().http`.

    Invariants: an invalid status or header raises where it is set; they apply to the result that is returned, or the
    first value that is yielded, and not to a failure, whose response is a problem document.
    """

    __slots__ = (
        "_put",
        "address",
        "headers",
        "is_truncated",
        "method",
        "path",
        "query",
        "request_id",
        "response_headers",
        "response_status",
    )

    def __init__(
        self,
        method: str = "POST",
        path: str = "/",
        query: str = "",
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        request_id: str = "",
        address: str = "",
        is_truncated: bool = False,
        put: PutHead | None = None,
    ) -> None:
        """`put`: the replica's; None: what is set can only be read back, as in a test."""
        self.method = method
        """GET, POST, PUT, PATCH, DELETE or HEAD."""
        self.path = path
        """The requested path, percent-encoded, without the query."""
        self.query = query
        """Behind the question mark, percent-encoded; empty: there is none."""
        self.headers = headers
        """Those that the front passes on (`--handler-headers`), by names in lower case, lines of one name together."""
        self.request_id = request_id
        """X-Request-ID."""
        self.address = address
        """The address of the client, as the front determines it (`--http-trusted-proxies`)."""
        self.is_truncated = is_truncated
        """Headers, and then the query, were left out, as together they have more than 8 KiB."""
        self.response_status: int | None = None
        """The arguments of `respond`; None: it was not called."""
        self.response_headers: HeaderPairs = ()
        self._put = put

    def respond(self, status: int = 200, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        """Sets status and headers of the answer, in place of what was set before. What is returned stays its body.

        Of a handler that yields: before the first value. 204 and 304 have no body.

        Raises:
            ValueError: a status outside of 200 to 599, a header that the front sets, or that cannot be sent.
            RuntimeError: the answer has begun, or there is none of that kind (WebSockets, `/v2`).
        """
        pairs: HeaderPairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        if problem := head_problem(status, pairs):
            raise ValueError(problem)
        if self._put is not None:
            self._put(status, pairs)
        self.response_status, self.response_headers = status, pairs

    def __repr__(self) -> str:
        return f"HttpContext({self.method} {self.path!r})"


_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})

MAX_IDEMPOTENCY_KEY_CHARS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """One call, for its handler."""

    call_id: str = ""
    """The client's id of the call in its session; without a session the router's. Unique only together with it."""
    endpoint: str = ""
    """The endpoint that was called."""
    method: str = ""
    """As the caller gave it: empty for `__call__`."""
    metadata: Mapping[str, str] = field(default_factory=lambda: _NO_METADATA)
    """What the caller sent with the call. Read-only."""
    deadline: datetime | None = None
    """When the caller stops waiting, in UTC; None: never."""
    ordering_key: str = ""
    """Empty: the call is in no order."""
    partition: int | None = None
    """The partition that the ordering key hashes to, 0 … 4,095; None without an ordering key."""
    owner_epoch: int | None = None
    """A fencing token: grows with each change of the owner of `partition`, never falls. None without an ordering key.

    What a call writes under a smaller one than what is stored comes from an owner of before (docs/state.md).
    """
    replica_id: str = ""
    """The replica that executes the call; empty in a replica that belongs to no mesh."""
    backend: str = ""
    """The backend of that replica."""
    version: str = ""
    """The `version` of that backend; this and the next three are as in `slotmesh.replica()`."""
    rank: int | None = None
    """The rank of the replica among the live ones of its backend, from 0; None: none is assigned."""
    num_replicas: int | None = None
    """The number of replicas that the backend should have now; None: unknown."""
    devices: tuple[str, ...] = ()
    """The devices that the replica holds, as `cuda=0`."""
    session_id: str = ""
    """The session of the client's stream; empty: none."""
    attempt: int = 0
    """0 at the first attempt of the mesh to run the call, one more at each after that."""
    idempotency_key: str = ""
    """The same at each attempt at this call, wherever it runs, and no other call's; at most 128 characters.

    A unary call that is repeated with its `request_id` is the same call."""
    own_request_id: str = ""
    """The option `request_id` of the call, which is executed once; empty: it has none.

    Of an HTTP request with an `Idempotency-Key` and a tenant, what stands for both. Ids of different callers are
    independent: what is written under it must name the caller, too, or have `idempotency_key` instead.
    """
    shard_key: str = ""
    """Calls of one shard key go to one backend; empty: the call has none."""
    affinity_key: str = ""
    """Calls of one affinity key prefer one replica; empty: the call has none."""
    model_id: str = ""
    """The model that the caller needs, for a method with `@slotmesh.multiplexed`; empty: the call names none."""
    is_shadow: bool = False
    """A sampled copy of a call, for a shadow: its result is dropped."""
    traceparent: str = ""
    """The span that the caller made the call in, a W3C `traceparent`; empty: the caller sent none."""
    tracestate: str = ""
    """The `tracestate` of that span; empty: none."""
    http: HttpContext | None = None
    """The HTTP request that the call came by, and its answer; None: it did not come by HTTP."""
    ends_at: float = field(default=inf, repr=False, compare=False)
    """The deadline on this process's `time.monotonic()`, so that a clock that is set moves nothing."""
    arrived_at: float | None = field(default=None, repr=False, compare=False)
    """The arrival at the router, on that clock; None: it is not known."""

    @property
    def request_id(self) -> str:
        """What names the request in logs; empty: nothing does.

        X-Request-ID by HTTP, else the call's option `request_id`, else `x-request-id` of its metadata.
        """
        if self.http is not None:
            return self.http.request_id
        return self.own_request_id or self.metadata.get(REQUEST_ID, "")

    def time_left(self) -> float | None:
        """Seconds until the deadline, 0 when it is over; None if there is none."""
        if self.deadline is None:
            return None
        if self.ends_at < inf:
            return max(0.0, self.ends_at - time.monotonic())
        return max(0.0, (self.deadline - datetime.now(UTC)).total_seconds())

    def age(self) -> float | None:
        """Seconds since the call arrived at the router: asked as the method begins, how long it has waited.

        None if that is not known, as for a call in a slot. It is right to some milliseconds: calls that travel
        together have one age.
        """
        return None if self.arrived_at is None else max(0.0, time.monotonic() - self.arrived_at)


class Place(Protocol):
    """What an executor is executing."""

    def context(self) -> CallContext:
        """The running call. Raises RuntimeError if there is none, or if it is unknown which one runs."""

    def contexts(self) -> Sequence[CallContext]:
        """The calls of the running batch, in its order; elsewhere the one call. Raises as `context` does."""


current_place: ContextVar[Place | None] = ContextVar("slotmesh.place", default=None)
"""Set before calls are started."""


class CallPlace:
    """A place in a call whose context is known: for tests of handlers, and for code without an executor."""

    __slots__ = ("_context",)

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def context(self) -> CallContext:
        return self._context

    def contexts(self) -> Sequence[CallContext]:
        return (self._context,)


class BatchPlace:
    """A place in a batch method, whose calls' contexts are made when they are looked at."""

    __slots__ = ("_contexts",)

    def __init__(self, contexts: Sequence[CallContext]) -> None:
        self._contexts = contexts

    def context(self) -> CallContext:
        raise RuntimeError("context() in a batch method, which has many calls: contexts()[i] is that of item i")

    def contexts(self) -> Sequence[CallContext]:
        return self._contexts


class Asking:
    """Whether code in this process requests contexts: executors then keep the place of each single call.

    Until then they keep one place for many calls that do not wait. That is enough for the calls themselves, but tasks
    that they have started and left behind could not be assigned to their calls.
    """

    __slots__ = ("is_known",)

    def __init__(self) -> None:
        self.is_known = False


asking: Final = Asking()


def context() -> CallContext:
    """The call that is being executed.

    Raises:
        RuntimeError: not in a call, or in a batch method.
    """
    return _place("context").context()


def contexts() -> Sequence[CallContext]:
    """In a batch method: the calls of the batch, parallel to its items. In other methods the one call.

    Raises:
        RuntimeError: not in a call.
    """
    return _place("contexts").contexts()


def deadline_of(left_s: float) -> tuple[datetime | None, float]:
    """`deadline` and `ends_at` of a call with `left_s` seconds left; infinite: none."""
    if left_s == inf:
        return None, inf
    left_s = min(left_s, _LONGEST_S)
    return datetime.now(UTC) + timedelta(seconds=left_s), time.monotonic() + left_s


def arrived_at_of(age_s: float | None) -> float | None:
    """`arrived_at` of a call of this age; None: not known."""
    return None if age_s is None else time.monotonic() - age_s


def _place(asked: str) -> Place:
    asking.is_known = True
    place = current_place.get()
    if place is None:
        raise RuntimeError(
            f"slotmesh.{asked}() outside of a call: ask while a handler's method runs, in the method or in a task that"
            " it has started (threads of your own start without: contextvars.copy_context().run); in a test,"
            " slotmesh.testing sets one"
        )
    return place


_LONGEST_S: Final = 1e9
"""About 30 years: what a datetime can certainly express."""


@dataclass(frozen=True, slots=True)
class OwnedKeys:
    """Ordering keys that a replica has gained or lost, for `on_keys_gained` and `on_keys_lost`.

    They are of one endpoint, and determined by the partitions that they hash to. `"alice" in keys`: whether it is.
    """

    endpoint: str
    """The endpoint of their calls."""
    owner_epochs: Mapping[int, int]
    """Owner epoch by partition, 0 … 4,095: at which the replica owns it now, or has owned it until now."""

    def __contains__(self, ordering_key: str) -> bool:
        return partition_of(ordering_key) in self.owner_epochs
