"""One stream of inferences, Triton's way: any number of requests, each answered as it ends.

Invariants: calls are submitted in the order in which requests were read. Answers of methods with one result are written
in that order, too; those of methods that yield are written as they come, between others. At most `MAX_AT_ONCE` requests
are under way: no more is read meanwhile. One write at a time; a failure is an answer, and never the end of the stream.
Owner: the servicer's task of this stream, whose child each request is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from router_service.convert.inference.answers import answer_to_wire, failed_on_stream
from router_service.shell.clients.inference_calls import InferenceCalls, PreparedInference
from slotmesh.errors import Failure
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.model import InferenceAnswer
from slotmesh.status import code_of, name_of

MAX_AT_ONCE: Final = 64
FINAL: Final = "triton_final_response"

Context = grpc.aio.ServicerContext[Any, Any]
ReadRequest = Callable[[], Awaitable[wire_pb2.ModelInferRequest | None]]


class InferenceStream:
    """Answers the requests of one client."""

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
        """`final`: what is said of the answer being the last one; None: nothing."""
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
