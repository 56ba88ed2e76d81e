"""Specs, sinks and parts for the client's book-keeping, made in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.outbox import CallOutbox, LargeCalls
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.codec import OCTET_STREAM

NONE_LARGE = LargeCalls(10**9, is_free=True)
"""A window that holds any call."""


@dataclass(eq=False)
class Sink:
    """A future, as far as the book-keeping is concerned."""

    name: Any = None
    cancelled: bool = False

    def done(self) -> bool:
        return self.cancelled


def make_spec(method: str = "echo", queue: CallQueue[Any] | None = None, **options: Any) -> CallSpec:
    options.setdefault("content_type", OCTET_STREAM)
    return CallSpec("digits", method, ViewOptions(**options), queue or CallQueue())


def make_part(*sizes: int, spec: CallSpec | None = None) -> SentPart:
    return SentPart(spec or make_spec(), [b"x" * size for size in sizes], sum(sizes), [Sink() for _ in sizes])


def make_map_part(*sizes: int, sink: Sink | None = None) -> SentPart:
    """A part of a map; `sink` is its one future."""
    gather: Any = sink or Sink()
    return SentPart(make_spec(), [b"x" * size for size in sizes], sum(sizes), [], gather)


def make_call(outbox: CallOutbox, spec: CallSpec, payload: bytes, sink: Any = None) -> Any:
    """Makes a call as `CallStream.submit` does."""
    run = spec.queue.tail
    if run is None or run.spec is not spec:
        run = outbox.open_run(spec)
    assert run.share.take(1, len(payload))
    sink = sink or Sink(payload)
    run.payloads.append(payload)
    run.sinks.append(sink)
    return sink
