"""Calls of the mesh from what requests say, and their results as payloads.

Invariants: calls on the same terms share one `CallSpec`, so that they travel as one batch; the ingress decodes no
result. A payload that is a `TracedPayload` says in which span its call is made.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from ingress_service.core.problems import refusal
from ingress_service.core.terms import PLAIN, RequestTerms
from ingress_service.shell.callers import OpenedStream
from ingress_service.shell.http_facts import MARK
from slotmesh.client.calls.call_spec import EXECUTED_PAYLOADS, PAYLOADS, CallSpec
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.traced_payload import TracedPayload
from slotmesh.client.values.call_values import CallValues
from slotmesh.client.values.value_stream import StreamedValues, ValueStream
from slotmesh.codec import TENSORS

MAX_SPECS: Final = 1_024
"""Of an endpoint: kinds of calls that share something."""


def make_call(
    calls: OpenedStream, method: str, form: str, terms: RequestTerms, payload: bytes
) -> asyncio.Future[bytes]:
    """The result, as it comes from the replica. Raises RequestRefusal; from the future SlotmeshError."""
    return calls.stream.submit(_spec(calls, method, form, terms, payload), payload)


def make_inference(
    calls: OpenedStream, method: str, terms: RequestTerms, payload: bytes
) -> asyncio.Future[tuple[bytes, str]]:
    """The tensors of the result, and the backend. Raises RequestRefusal; from the future SlotmeshError."""
    return calls.stream.submit(_spec(calls, method, TENSORS, terms, payload, EXECUTED_PAYLOADS), payload)


def make_streaming_call(
    calls: OpenedStream, method: str, form: str, terms: RequestTerms, payload: bytes
) -> ValueStream[bytes]:
    """The values, as they come. Raises RequestRefusal; from the iterator SlotmeshError."""
    spec = _spec(calls, method, form, terms, payload).streamed()
    values = CallValues()
    calls.stream.submit(spec, payload, values)
    return StreamedValues(spec, values)


def _spec(
    calls: OpenedStream, method: str, form: str, terms: RequestTerms, payload: bytes, wanted: object = PAYLOADS
) -> CallSpec:
    """`wanted` goes with the form: only inferences have tensors."""
    is_traced = type(payload) is TracedPayload
    key = (method, form, is_traced) if terms is PLAIN else (method, form, is_traced, terms)
    found = calls.specs.get(key)
    if found is not None:
        return cast("CallSpec", found)
    options = _options(form, terms, is_traced=is_traced)
    made = CallSpec(calls.stream.endpoint, method, options, _queue(calls, terms), wanted)
    if not terms.ordering_key and terms.slo_at is None:
        if len(calls.specs) >= MAX_SPECS:
            calls.specs.clear()
        calls.specs[key] = made
    return made


def _queue(calls: OpenedStream, terms: RequestTerms) -> CallQueue[Any]:
    return calls.stream.queue_of(terms.ordering_key) if terms.ordering_key else CallQueue()


def _options(form: str, terms: RequestTerms, *, is_traced: bool) -> ViewOptions:
    try:
        return ViewOptions(
            content_type=form,
            slo_s=terms.slo_s,
            slo_at=terms.slo_at,
            timeout_s=terms.timeout_s,
            shard_key=terms.shard_key,
            ordering_key=terms.ordering_key,
            tenant=terms.tenant,
            idempotent=terms.idempotent,
            metadata=dict(terms.metadata),
            traced=is_traced,
            http=MARK if is_traced else b"",
        )
    except (ValueError, TypeError) as error:
        raise refusal(400, str(error).partition(": ")[2] or str(error)) from None
