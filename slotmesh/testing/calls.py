"""What `slotmesh.context()` says to code of a handler that a test calls by itself, without a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from slotmesh.handlers.context import (
    BatchPlace,
    CallContext,
    CallPlace,
    Place,
    arrived_at_of,
    current_place,
    deadline_of,
)


class ContextFields(TypedDict, total=False):
    """What a test may say of a call; `slotmesh.CallContext` says what each means."""

    call_id: str
    endpoint: str
    method: str
    metadata: Mapping[str, str]
    timeout: float | None
    """Seconds from now until the deadline; None: there is none."""
    ordering_key: str
    session_id: str
    attempt: int
    idempotency_key: str
    shard_key: str
    is_shadow: bool
    traceparent: str
    tracestate: str
    age: float | None
    """Seconds since the call arrived at the router; None: not known."""


def make_context(**fields: Unpack[ContextFields]) -> CallContext:
    """A context of a call, for tests. What is not given is that of a first, plain call of the endpoint `test`."""
    given: dict[str, Any] = {"call_id": "1", "endpoint": "test", "idempotency_key": "test-1", **fields}
    timeout = given.pop("timeout", None)
    deadline, ends_at = deadline_of(inf if timeout is None else timeout)
    arrived_at = arrived_at_of(given.pop("age", None))
    metadata = MappingProxyType(dict(given.pop("metadata", {})))
    return CallContext(metadata=metadata, deadline=deadline, ends_at=ends_at, arrived_at=arrived_at, **given)


@contextmanager
def call_context(**fields: Unpack[ContextFields]) -> Iterator[CallContext]:
    """Within the block `slotmesh.context()` is `make_context(**fields)`, here and in tasks that begin here."""
    context = make_context(**fields)
    with _at(CallPlace(context)):
        yield context


@contextmanager
def batch_contexts(*contexts: CallContext) -> Iterator[None]:
    """Within the block `slotmesh.contexts()` gives these, one for each item of a batch method that the test calls."""
    with _at(BatchPlace(contexts)):
        yield


@contextmanager
def _at(place: Place) -> Iterator[None]:
    token = current_place.set(place)
    try:
        yield
    finally:
        current_place.reset(token)
