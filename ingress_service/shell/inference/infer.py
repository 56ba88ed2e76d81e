"""Inferences: a body becomes a call over the stream of its endpoint, and the result a body.

Invariants: what is wrong with a request is found before a call is made of it; elements are copied, never looked at; a
body is held while its inference runs, in the size that it has when it is not compressed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from ingress_service.core.content_coding import Coding, deflated
from ingress_service.core.inference_headers import InferenceHeaders, inference_headers
from ingress_service.core.inference_paths import InferencePath
from ingress_service.core.inference_terms import of_version, terms_with
from ingress_service.core.request_bound import Requester
from ingress_service.core.requests import RequestHeaders
from ingress_service.core.terms import PLAIN, RequestTerms, terms_of
from ingress_service.shell.answers import RequestAnswer
from ingress_service.shell.bodies import HeldBody, Receive
from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.calls import make_inference
from ingress_service.shell.inference.versions import infer_version
from ingress_service.shell.mesh_view import MeshView
from ingress_service.shell.request_spans import carried
from slotmesh.endpoint_names import endpoint_mistake
from slotmesh.errors import Failure, MethodNotFound
from slotmesh.oip.checks import RequestMistake
from slotmesh.oip.json_answers import HttpAnswer, answer_to_http
from slotmesh.oip.json_requests import LENGTH_HEADER, HttpInference, inference_from_http
from slotmesh.oip.methods import has_many_results, method_of_inference
from slotmesh.oip.model import InferenceAnswer
from slotmesh.oip.parameters import ParameterMeaning, meaning_of
from slotmesh.oip.payloads import payload_of
from slotmesh.oip.results import answer_of
from slotmesh.status import to_exception

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
        if failure := endpoint_mistake(path.model, "model_name"):
            raise to_exception(failure)
        said = inference_headers(lines)
        terms = terms_of(headers.terms) if headers.terms else PLAIN
        body = await held.read(receive, headers)
        outcome = await self._outcome(path, caller, held.who, said, terms, body, answer)
        if isinstance(outcome, Failure):
            raise to_exception(outcome, endpoint=path.model)
        await _send(outcome, said.wanted, answer)

    async def _outcome(
        self,
        path: InferencePath,
        caller: HttpCaller,
        who: Requester,
        said: InferenceHeaders,
        terms: RequestTerms,
        body: bytes,
        answer: RequestAnswer,
    ) -> HttpAnswer | Failure:
        try:
            inference = inference_from_http(path.model, path.version, body, said.json_size)
            meaning = meaning_of(inference.request.parameters)
        except RequestMistake as mistake:
            return mistake.failure
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
        method = await self._method(caller, request.model, meaning)
        if isinstance(method, Failure):
            return method
        payload = payload_of(request.inputs, len(request.inputs)) if request.inputs else _NO_PAYLOAD
        payload = carried(answer.trace, payload, answer.facts)
        try:
            with self._mesh.calling(caller, request.model, who, len(payload), terms.ordering_key) as calls:
                result, backend = await make_inference(calls, method, terms, payload)
        except MethodNotFound:
            self._mesh.described.forget(caller, request.model)
            raise
        return answer_of(replace(request, inputs=()), result, backend)

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
