"""Frames of calls that came by HTTP: what is said of their requests counts, as a router takes no larger frame."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.calls.trace_context import MAX_HTTP_BYTES, TraceContext
from slotmesh.client.calls.call_spec import PAYLOADS, CallSpec, TracedPayload
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.outbox import TURN_CALLS, CallOutbox
from slotmesh.client.calls.queues import CallQueue
from slotmesh.streams.limits import MAX_FRAME_BYTES, MAX_ROUTER_REQUEST_BYTES
from tests.unit.client.parts import NONE_LARGE


@pytest.mark.asyncio
async def test_no_frame_is_larger_than_a_router_takes() -> None:
    outbox = CallOutbox()
    spec = CallSpec("e", "m", ViewOptions(traced=True, http=b"x" * 16), CallQueue(), PAYLOADS)
    run = outbox.open_run(spec)
    for _ in range(5_000):
        payload = TracedPayload(b"x")
        payload.trace = TraceContext("", "", b"h" * MAX_HTTP_BYTES)
        run.payloads.append(payload)
        run.sinks.append(asyncio.get_running_loop().create_future())
    frames = []
    while outbox.rota:
        frames.append(sum(len(part.payloads) for part in outbox.take(8_192, 16 * 2**20, NONE_LARGE)))
    assert sum(frames) == 5_000
    assert max(frames) <= TURN_CALLS
    assert TURN_CALLS * MAX_HTTP_BYTES + 2 * MAX_FRAME_BYTES < MAX_ROUTER_REQUEST_BYTES
