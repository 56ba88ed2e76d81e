"""Calls of the mesh from requests, their results as payloads, and the facts of requests that handlers get.

Invariants: calls on the same terms share one `CallSpec`, so that they travel as one batch; the ingress decodes no
result. A `TracedPayload` carries the span in which its call is made.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, cast

from google.protobuf.message import DecodeError

from ingress_service.core.call_options import PLAIN, RequestTerms, unrepeatable
from ingress_service.core.problems import PLAIN as PLAIN_HEAD
from ingress_service.core.problems import ResponseHead, refusal, response_head
from ingress_service.shell.callers import OpenedStream
from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.result_envelopes import MIN_MARK_BYTES, split_head
from slotmesh.calls.trace_context import MAX_HTTP_BYTES
from slotmesh.client.calls.call_spec import (
    EXECUTED_PAYLOADS,
    MAX_UNARY_BYTES,
    PAYLOADS,
    CallSpec,
    TracedPayload,
    too_large,
)
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.values import CallValues, ValueStream
from slotmesh.client.unary import call_alone
from slotmesh.codec import TENSORS
from slotmesh.errors import Failure, Reason
from slotmesh.status import to_exception
from slotmesh.v1 import call_pb2
from slotmesh.v1.router_service_pb2 import CallResponse

MARK: Final = secrets.token_bytes(MIN_MARK_BYTES)


class HttpFacts:
    """Makes the facts of requests, a message of the mesh that handlers get beside the arguments.

    Headers are passed on if the settings name them, and a token never; what does not fit is left out, and the message
    states that. `MARK`, by which heads of answers are found, is random for each process, and shown to routers and
    replicas only.
    """

    def __init__(self, names: Collection[str]) -> None:
        """`names`: of the headers that handlers get, in lower case."""
        self._names = frozenset(it.encode() for it in names)

    def of(
        self, scope: Mapping[str, Any], request_id: str, address: str, *, method: str = "", can_respond: bool
    ) -> bytes:
        """Of one request. `method`: where it is not that of the scope."""
        wire = call_pb2.HttpRequest(
            method=method or scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            request_id=request_id,
            address=address,
            can_respond=can_respond,
        )
        for name, value in self._chosen(scope["headers"]).items():
            wire.headers.add(name=name.decode("latin-1"), value=value.decode("latin-1"))
        facts = wire.SerializeToString()
        if len(facts) <= MAX_HTTP_BYTES:
            return facts
        wire.truncated = True
        wire.ClearField("headers")
        for field in ("query", "path"):
            if wire.ByteSize() > MAX_HTTP_BYTES:
                wire.ClearField(field)
        return wire.SerializeToString()

    def _chosen(self, lines: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        chosen: dict[bytes, bytes] = {}
        names = self._names
        for name, value in lines:
            if name in names:
                before = chosen.get(name)
                separator = b"; " if name == b"cookie" else b", "
                chosen[name] = value if before is None else before + separator + value
        return chosen


def head_of(result: bytes) -> tuple[bytes, ResponseHead]:
    """A result, and what its handler has set for the answer. Raises RequestRefusal where that cannot be sent."""
    if not result.endswith(MARK):
        return result, PLAIN_HEAD
    result, head = split_head(result, MARK)
    if head is None:
        return result, PLAIN_HEAD
    try:
        wire = call_pb2.HttpResponseHead.FromString(head)
    except DecodeError:
        return result, PLAIN_HEAD
    return result, response_head(wire.status, [(it.name, it.value) for it in wire.headers])


_OTHER_CALL: Final = (
    "Idempotency-Key: was used for another request, with another path, body, Content-Type, Accept or model; choose a"
    " new key for each"
)
MAX_SPECS: Final = 1_024
"""Of an endpoint: kinds of calls that share something."""


def make_call(
    calls: OpenedStream, method: str, form: str, terms: RequestTerms, payload: bytes
) -> asyncio.Future[bytes]:
    """The result, as it comes from the replica. Raises RequestRefusal; from the future SlotmeshError."""
    if terms.request_id:
        return asyncio.ensure_future(_result(_identified(calls, method, form, terms, payload)))
    return calls.stream.submit(_spec(calls, method, form, terms, payload), payload)


def make_inference(
    calls: OpenedStream, method: str, terms: RequestTerms, payload: bytes
) -> asyncio.Future[tuple[bytes, str]]:
    """The tensors of the result, and the backend. Raises RequestRefusal; from the future SlotmeshError."""
    if terms.request_id:
        return asyncio.ensure_future(_identified(calls, method, TENSORS, terms, payload))
    return calls.stream.submit(_spec(calls, method, TENSORS, terms, payload, EXECUTED_PAYLOADS), payload)


def make_streaming_call(
    calls: OpenedStream, method: str, form: str, terms: RequestTerms, payload: bytes
) -> ValueStream[bytes]:
    """The values, as they come. Raises RequestRefusal; from the iterator SlotmeshError."""
    unrepeatable(terms, "a stream of values")
    spec = _spec(calls, method, form, terms, payload).streamed()
    values = CallValues()
    calls.stream.submit(spec, payload, values)
    return ValueStream(spec, values)


async def _result(outcome: Coroutine[Any, Any, tuple[bytes, str]]) -> bytes:
    return (await outcome)[0]


async def _identified(
    calls: OpenedStream, method: str, form: str, terms: RequestTerms, payload: bytes
) -> tuple[bytes, str]:
    """The result of a call with a request id, and the backend. Routers take these as rpcs of their own.

    Raises RequestRefusal and SlotmeshError.
    """
    spec = CallSpec(
        calls.stream.endpoint,
        method,
        _options(form, terms, is_traced=type(payload) is TracedPayload),
        CallQueue(),
        PAYLOADS,
        CallRpc.CALL,
    )
    if len(payload) > MAX_UNARY_BYTES:
        response: CallResponse | Failure = too_large(len(payload), MAX_UNARY_BYTES)
    else:
        response = await call_alone(calls.stream, spec, payload)
    if not isinstance(response, Failure):
        return response.payload, response.backend
    if response.reason is Reason.BAD_REQUEST and response.metadata.get("field") == "request_id":
        raise refusal(422, _OTHER_CALL)
    raise to_exception(response, endpoint=spec.endpoint, method=method)


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
            affinity_key=terms.affinity_key,
            model_id=terms.model_id,
            ordering_key=terms.ordering_key,
            tenant=terms.tenant,
            idempotent=terms.idempotent,
            request_id=terms.request_id or None,
            metadata=dict(terms.metadata),
            traced=is_traced,
            http=MARK if is_traced else b"",
        )
    except (ValueError, TypeError) as error:
        raise refusal(400, str(error).partition(": ")[2] or str(error)) from None
