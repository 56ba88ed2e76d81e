"""Inferences: a body becomes a call over the stream of its endpoint, and the result a body.

Invariants: an invalid request is refused before a call is made of it; elements are copied, never looked at; a body is
held while its inference runs, in the size that it has when it is not compressed. Streams of calls have no field for a
version: inferences of one version are rpcs of their own, of 4 MiB at most, and sent again only if a router has reported
that they were not executed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import grpc

from ingress_service.convert import answer_from_wire, request_to_wire
from ingress_service.core.call_options import PLAIN, RequestTerms, terms_of
from ingress_service.core.inference import (
    InferenceHeaders,
    InferencePath,
    inference_headers,
    of_version,
    terms_with,
    with_model,
)
from ingress_service.core.media import Coding, deflated
from ingress_service.core.peers import Requester
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.answers import RequestAnswer
from ingress_service.shell.bodies import HeldBody, Receive
from ingress_service.shell.callers import ASK_S, HttpCaller
from ingress_service.shell.calls import make_inference
from ingress_service.shell.mesh_view import MeshView
from ingress_service.shell.request_spans import RequestTrace, carried
from slotmesh.client.calls.call_spec import too_large
from slotmesh.client.routers import refusal_of
from slotmesh.errors import Executed, Failure, MethodNotFound, Reason
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.names import endpoint_failure
from slotmesh.oip.calls import (
    ParameterMeaning,
    answer_of,
    has_many_results,
    meaning_of,
    method_of_inference,
    payload_of,
)
from slotmesh.oip.http import LENGTH_HEADER, HttpAnswer, HttpInference, answer_to_http, inference_from_http
from slotmesh.oip.model import InferenceAnswer, InferenceRequest, InvalidRequest, endpoint_and_model
from slotmesh.status import to_exception
from slotmesh.streams.limits import MAX_INLINE_BYTES

_ELSEWHERE: Final = frozenset({Reason.DRAINING, Reason.STALE_TABLE})


async def infer_version(
    caller: HttpCaller, request: InferenceRequest, trace: RequestTrace | None = None
) -> InferenceAnswer | Failure:
    """The answer of the version that the request names."""
    size = sum(len(each.data) for each in request.inputs)
    if size > MAX_INLINE_BYTES:
        return too_large(size, MAX_INLINE_BYTES)
    try:
        wire = request_to_wire(request)
    except InvalidRequest as error:
        return error.failure
    metadata = None if trace is None else trace.metadata
    failure = Failure(reason=Reason.ROUTER_LOST, message="no router can be reached")
    if not await caller.routers.found(ASK_S):
        return caller.routers.unreachable(ASK_S)
    for address in caller.routers.in_turn(""):
        try:
            async with asyncio.timeout(ASK_S):
                await caller.routers.wait_for_connection(address, patiently=False)
        except (ConnectionError, TimeoutError):
            caller.routers.look_again()
            continue
        try:
            stub = GRPCInferenceServiceStub(caller.routers.channel(address))
            return answer_from_wire(await stub.ModelInfer(wire, metadata=metadata))
        except grpc.RpcError as error:
            failure = refusal_of(error, address, caller.routers.dialer)
            if failure.executed is not Executed.NO or failure.reason not in _ELSEWHERE:
                break
    return failure


MIN_COMPRESSED_BYTES: Final = 1024
MAX_AT_ONCE_BYTES: Final = 64 * 1024
"""More is compressed in a thread."""
_LENGTH: Final = LENGTH_HEADER.lower().encode()
_NO_PAYLOAD: Final = b"\x80"
_FOR_STREAMS: Final = "ModelStreamInfer of gRPC, or /ENDPOINT/METHOD with Accept: text/event-stream"


class Inferences:
    """Makes them."""

    def __init__(self, mesh: MeshView) -> None:
        self._mesh = mesh

    async def answer(
        self,
        path: InferencePath,
        caller: HttpCaller,
        held: HeldBody,
        headers: RequestHeaders,
        lines: list[tuple[bytes, bytes]],
        receive: Receive,
        answer: RequestAnswer,
    ) -> None:
        """Reads the body, and answers. `lines`: all headers. Raises RequestRefusal, SlotmeshError, ClientLeft."""
        endpoint, model_id = endpoint_and_model(path.model)
        if failure := endpoint_failure(endpoint, "model_name"):
            raise to_exception(failure)
        options = inference_headers(lines)
        terms = terms_of(headers.terms) if headers.terms else PLAIN
        if model_id and not path.version:
            terms = with_model(terms, model_id)
        body = await held.read(receive, headers)
        outcome = await self._outcome(path, caller, held.who, options, terms, body, answer)
        if isinstance(outcome, Failure):
            raise to_exception(outcome, endpoint=endpoint)
        await _send(outcome, options.wanted, answer)

    async def _outcome(
        self,
        path: InferencePath,
        caller: HttpCaller,
        who: Requester,
        options: InferenceHeaders,
        terms: RequestTerms,
        body: bytes,
        answer: RequestAnswer,
    ) -> HttpAnswer | Failure:
        try:
            inference = inference_from_http(path.model, path.version, body, options.json_size)
            meaning = meaning_of(inference.request.parameters)
        except InvalidRequest as error:
            return error.failure
        if path.version:
            outcome = await infer_version(caller, of_version(inference.request, meaning, terms), answer.trace)
        else:
            outcome = await self._called(caller, who, inference, meaning, terms_with(terms, meaning), answer)
        return outcome if isinstance(outcome, Failure) else answer_to_http(outcome, inference)

    async def _called(
        self,
        caller: HttpCaller,
        who: Requester,
        inference: HttpInference,
        meaning: ParameterMeaning,
        terms: RequestTerms,
        answer: RequestAnswer,
    ) -> InferenceAnswer | Failure:
        request = inference.request
        endpoint, _ = endpoint_and_model(request.model)
        method = await self._method(caller, endpoint, meaning)
        if isinstance(method, Failure):
            return method
        payload = payload_of(request.inputs, len(request.inputs)) if request.inputs else _NO_PAYLOAD
        payload = carried(answer.trace, payload, answer.facts)
        while True:
            try:
                with self._mesh.calling(caller, endpoint, who, len(payload), terms.ordering_key) as calls:
                    result, backend = await make_inference(calls, method, terms, payload)
                return answer_of(replace(request, inputs=()), result, backend)
            except MethodNotFound:
                # The method was that of before, or of no replica at all: the one that has refused it has others.
                self._mesh.described.forget(caller, endpoint)
                before, method = method, await self._method(caller, endpoint, meaning)
                if method == before:
                    raise
            if isinstance(method, Failure):
                return method

    async def _method(self, caller: HttpCaller, model: str, meaning: ParameterMeaning) -> str | Failure:
        """The method that is called, which has one result."""
        known = await self._mesh.described.endpoint(caller, model)
        methods = {each.name: each for each in known.methods} if known is not None else {}
        method = meaning.method or method_of_inference(model, methods.keys())
        if isinstance(method, str) and method in methods and methods[method].yields:
            return has_many_results(method, _FOR_STREAMS)
        return method


async def _send(http: HttpAnswer, wanted: Coding | None, answer: RequestAnswer) -> None:
    lines = [(b"content-type", http.content_type.encode())]
    if http.json_size is not None:
        lines.append((_LENGTH, b"%d" % http.json_size))
    body = http.body
    if wanted is not None and len(body) >= MIN_COMPRESSED_BYTES:
        lines += [(b"content-encoding", wanted.header), (b"vary", b"accept-encoding")]
        is_small = len(body) <= MAX_AT_ONCE_BYTES
        body = deflated(wanted, body) if is_small else await asyncio.to_thread(deflated, wanted, body)
    await answer.whole(200, lines, body)
