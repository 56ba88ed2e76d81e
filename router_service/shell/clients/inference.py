"""Inferences as calls: a request of the Open Inference Protocol becomes one unary call, and its result an answer.

Purpose: shared by single requests and those of a stream, which submit calls in the order in which they were read: so
nothing is awaited between `prepared` and the submission.
Invariants: a request is checked before a call is made of it. Elements are copied, never inspected.
Owner: the servicer of inference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc

from router_service import convert
from router_service.convert.inference import answer_to_wire, failed_on_stream, request_of
from router_service.convert.options import AFFINITY_KEY, EACH_VALUE, MODEL_ID, TENANT
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverDone, DeliverResults
from router_service.core.routing.catalog import inference_method, tensors_of_method
from router_service.shell.clients.unary import HandedMetadata, UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.trace_context import TraceContext
from slotmesh.codec import TENSORS
from slotmesh.errors import Failure, bad_metadata
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.names import endpoint_failure
from slotmesh.oip.calls import DEFAULT_METHOD, ParameterMeaning, answer_of, has_many_results, meaning_of, payload_of
from slotmesh.oip.model import InferenceAnswer, InferenceRequest, InvalidRequest, endpoint_and_model
from slotmesh.security.rpc_roles import endpoint_refusal
from slotmesh.spec.option_rules import key_problem
from slotmesh.spec.tenants import tenant_problem
from slotmesh.status import code_of, name_of
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2

Context = grpc.aio.ServicerContext[Any, Any]
WriteAnswer = Callable[[InferenceAnswer], Awaitable[object]]
_NO_PAYLOAD: Final = b"\x80"


@dataclass(frozen=True, slots=True)
class PreparedInference:
    """A call to be made."""

    request: InferenceRequest
    """Without its elements."""
    endpoint: str
    """Of the name of its model."""
    meaning: ParameterMeaning
    options: RouterCallOptions
    payload: bytes
    trace: TraceContext | None
    yields: bool
    """Its method has any number of results."""


class InferenceCalls:
    """Makes calls of requests."""

    def __init__(self, dispatcher: Dispatcher, unary: UnaryCalls, handed: HandedMetadata) -> None:
        """`handed`: which metadata of rpcs handlers get."""
        self._dispatcher = dispatcher
        self._unary = unary
        self._handed = handed

    def prepared(self, wire: wire_pb2.ModelInferRequest, context: Context) -> PreparedInference | Failure:
        """The call of a request, or what is wrong with that. The first routing table should be there."""
        endpoint, model_id = endpoint_and_model(wire.model_name)
        if failure := endpoint_failure(endpoint, "model_name") or endpoint_refusal(endpoint):
            return failure
        try:
            request = request_of(wire)
            meaning = meaning_of(request.parameters)
        except InvalidRequest as error:
            return error.failure
        payload = payload_of(request.inputs, len(request.inputs)) if request.inputs else _NO_PAYLOAD
        if len(payload) > MAX_INLINE_BYTES:
            return convert.too_large(len(payload), fix=convert.SPLIT_BATCH)
        method, yields = self._method(endpoint, request.version, meaning)
        if isinstance(method, Failure):
            return method
        options_wire = _options_of(meaning, method, streaming=yields)
        options_wire.model_id = model_id
        if (wrong := _take_options(context, options_wire)) is not None:
            return wrong
        trace = self._handed.take(context, options_wire)
        options = convert.options_from_wire(options_wire)
        if isinstance(options, Failure):
            return options
        if request.version:
            options = replace(options, backend=request.version)
        return PreparedInference(replace(request, inputs=()), endpoint, meaning, options, payload, trace, yields)

    async def answer(self, prepared: PreparedInference, context: Context) -> InferenceAnswer | Failure:
        """The result of a call whose method has one."""
        if prepared.yields:
            return has_many_results(prepared.options.method, "ModelStreamInfer")
        outcome = await self._unary.call(
            context.peer(),
            prepared.endpoint,
            prepared.options,
            prepared.payload,
            prepared.trace,
            context.time_remaining,
        )
        if isinstance(outcome, Failure):
            return outcome
        if isinstance(outcome, DeliverDone):
            return InferenceAnswer(model=prepared.request.model, version="", request_id=prepared.request.request_id)
        return self._answer_of(prepared, outcome)

    async def answers(self, prepared: PreparedInference, context: Context, write: WriteAnswer) -> Failure | None:
        """Writes each value that a method yields as an answer; returns why the call failed, if it did."""
        version = ""
        wrong: Failure | None = None

        async def write_value(payload: bytes, _content_type: str, backend: str, _replica_id: str) -> None:
            nonlocal version, wrong
            version = version or backend
            answer = answer_of(prepared.request, payload, version)
            if isinstance(answer, InferenceAnswer):
                await write(answer)
            else:
                wrong = wrong or answer

        failure = await self._unary.stream(
            context.peer(),
            prepared.endpoint,
            prepared.options,
            prepared.payload,
            write_value,
            prepared.trace,
            context.time_remaining,
        )
        return failure or wrong

    def noted(self, failure: Failure, model: str) -> Failure:
        """The failure as its caller gets it, as it is in the log. `model`: the name in the request."""
        return self._dispatcher.noted(failure, endpoint_and_model(model)[0])

    def _answer_of(self, prepared: PreparedInference, outcome: DeliverResults) -> InferenceAnswer | Failure:
        payload = joined(outcome.payloads[0])
        if len(payload) > MAX_INLINE_BYTES:
            return convert.result_too_large(len(payload), convert.SPLIT_BATCH)
        return answer_of(prepared.request, payload, outcome.replica.backend.name)

    def _method(self, name: str, version: str, meaning: ParameterMeaning) -> tuple[str | Failure, bool]:
        """The method that is called, and whether it yields."""
        topology = self._dispatcher.scheduler.topology
        endpoint = topology.endpoint(name)
        if endpoint is None:
            return meaning.method or DEFAULT_METHOD, False  # the call fails with what is known of endpoints
        method = meaning.method or inference_method(topology, endpoint, version)
        if isinstance(method, Failure):
            return method, False
        tensors = tensors_of_method(topology, endpoint, method, version)
        return method, tensors is not None and tensors.yields


def _options_of(meaning: ParameterMeaning, method: str, *, streaming: bool) -> call_pb2.CallOptions:
    wire = call_pb2.CallOptions(method=method, content_type=TENSORS, ordering_key=meaning.ordering_key)
    if streaming:
        wire.MergeFrom(EACH_VALUE)
    if meaning.timeout_s is not None:
        wire.timeout.FromNanoseconds(round(meaning.timeout_s * 1e9))
    if meaning.slo_s is not None:
        wire.relative_slo.FromNanoseconds(round(meaning.slo_s * 1e9))
    if meaning.metadata:
        wire.metadata.update(meaning.metadata)
    return wire


_IN_METADATA: Final = {
    TENANT: ("tenant", tenant_problem),
    AFFINITY_KEY: ("affinity_key", key_problem),
    MODEL_ID: ("model_id", key_problem),
}
"""Options for which the protocol has no field, and their checks."""


def _take_options(context: Context, wire: call_pb2.CallOptions) -> Failure | None:
    """Sets the options that are in the metadata, as they are for services of the user's own."""
    given: set[str] = set()
    for key, value in context.invocation_metadata() or ():
        if key not in _IN_METADATA:
            continue
        if key in given or not isinstance(value, str):
            return bad_metadata(key, "is given twice" if key in given else "must be text")
        given.add(key)
        name, problem_of = _IN_METADATA[key]
        if problem := problem_of(value):
            return bad_metadata(key, problem)
        if key == MODEL_ID and wire.model_id not in ("", value):
            return bad_metadata(key, "names another model than model_name")
        setattr(wire, name, value)
    return None


MAX_AT_ONCE: Final = 64
FINAL: Final = "triton_final_response"

ReadRequest = Callable[[], Awaitable[wire_pb2.ModelInferRequest | None]]


class InferenceStream:
    """One stream of inferences, as Triton has them: any number of requests, each answered as it ends.

    Invariants: calls are submitted in the order in which requests were read. Answers of methods with one result are
    written in that order, too; those of methods that yield are written as they arrive, between others. At most
    `MAX_AT_ONCE` requests are pending: no more are read meanwhile. One write at a time; a failure is an answer, and
    never ends the stream.
    Owner: the servicer's task of this stream, whose child each request is.
    """

    def __init__(self, calls: InferenceCalls, context: Context) -> None:
        self._calls = calls
        self._context = context
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._writing = asyncio.Lock()
        self._under_way = 0

    @property
    def is_busy(self) -> bool:
        """Whether requests are under way."""
        return self._under_way > 0

    async def run(self, read: ReadRequest) -> None:
        """Reads until half-close; returns when all is answered."""
        before = asyncio.Event()
        before.set()
        async with asyncio.TaskGroup() as requests:
            while (request := await read()) is not None:
                await self._room.acquire()
                self._under_way += 1
                after = asyncio.Event()
                # Tasks start in the order in which they were made, and submit their calls before they wait.
                requests.create_task(self._serve(request, before, after))
                before = after
                del request

    async def _serve(self, request: wire_pb2.ModelInferRequest, before: asyncio.Event, after: asyncio.Event) -> None:
        try:
            await self._answer(request, before, after)
        finally:
            after.set()
            self._under_way -= 1
            self._room.release()

    async def _answer(self, request: wire_pb2.ModelInferRequest, before: asyncio.Event, after: asyncio.Event) -> None:
        endpoint, request_id = request.model_name, request.id
        prepared = self._calls.prepared(request, self._context)
        if isinstance(prepared, PreparedInference) and prepared.yields:
            after.set()
            await self._stream(prepared)
            return
        if isinstance(prepared, PreparedInference):
            outcome = await self._calls.answer(prepared, self._context)
            wants_final, typed = prepared.meaning.wants_final, prepared.request.is_typed
        else:
            outcome, wants_final, typed = prepared, False, False
        await before.wait()
        if isinstance(outcome, Failure):
            await self._fail(outcome, endpoint, request_id)
        else:
            await self._write(outcome, typed=typed, final=True if wants_final else None)

    async def _stream(self, prepared: PreparedInference) -> None:
        """Each value, then the failure or, where it was asked for, an answer without outputs."""
        request, wants_final = prepared.request, prepared.meaning.wants_final

        async def write(answer: InferenceAnswer) -> None:
            await self._write(answer, typed=request.is_typed, final=False if wants_final else None)

        failure = await self._calls.answers(prepared, self._context, write)
        if failure is not None:
            await self._fail(failure, request.model, request.request_id)
        elif wants_final:
            last = InferenceAnswer(model=request.model, version=request.version, request_id=request.request_id)
            await self._write(last, typed=False, final=True)

    async def _write(self, answer: InferenceAnswer, *, typed: bool, final: bool | None) -> None:
        """`final`: whether the answer is marked as the last one; None: no mark."""
        wire = answer_to_wire(answer, typed=typed)
        if isinstance(wire, Failure):
            await self._fail(wire, answer.model, answer.request_id)
            return
        if final is not None:
            wire.parameters[FINAL].bool_param = final
        async with self._writing:
            await self._context.write(wire_pb2.ModelStreamInferResponse(infer_response=wire))

    async def _fail(self, failure: Failure, endpoint: str, request_id: str) -> None:
        failure = self._calls.noted(failure, endpoint)
        wire = failed_on_stream(request_id, name_of(code_of(failure)), failure.message)
        async with self._writing:
            await self._context.write(wire)
