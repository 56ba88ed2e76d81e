"""Requests of the Open Inference Protocol, one operation after the other, and what routers report as JSON.

Invariants: probes need no caller, and reveal nothing of the mesh but whether it takes calls; everything else is asked
of routers, or called, as the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc
import msgspec

from ingress_service import convert
from ingress_service.core.inference import InferenceOperation, InferencePath
from ingress_service.core.problems import refusal
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.answers import RequestAnswer
from ingress_service.shell.bodies import HeldBody, Receive
from ingress_service.shell.callers import ASK_S, HttpCaller, ask_routers
from ingress_service.shell.inference_calls import Inferences
from ingress_service.shell.mesh_view import MeshView
from slotmesh.errors import Reason
from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.names import overlong_endpoint
from slotmesh.oip.http import JSON_TYPE
from slotmesh.status import to_exception

KEEP_S: Final = 0.5
"""How long an answer holds."""
_READY: Final = pb.ServerReadyRequest()


class RouterReadiness:
    """Whether some router takes calls, for probes, which need no caller. Asks as the ingress itself.

    One query at a time, whose answer holds for a while, however many probes there are.
    """

    def __init__(self) -> None:
        self._is_ready = False
        self._until = 0.0
        self._asked: asyncio.Task[bool] | None = None

    async def is_one_ready(self, own: HttpCaller) -> bool:
        """Whether one of the routers has reported ready, now or just before. Those that stop are not ready."""
        if asyncio.get_running_loop().time() < self._until:
            return self._is_ready
        if self._asked is None:
            self._asked = asyncio.create_task(self._ask(own), name="router-readiness")
        return await asyncio.shield(self._asked)

    def close(self) -> None:
        """Asks no more."""
        if self._asked is not None:
            self._asked.cancel()

    async def _ask(self, own: HttpCaller) -> bool:
        try:
            self._is_ready = await _is_one_ready(own)
            self._until = asyncio.get_running_loop().time() + KEEP_S
            return self._is_ready
        finally:
            self._asked = None


async def _is_one_ready(own: HttpCaller) -> bool:
    await own.routers.found(ASK_S)
    for address in own.routers.in_turn(""):
        stub: Any = GRPCInferenceServiceStub(own.routers.channel(address))
        with suppress(grpc.RpcError):
            if (await stub.ServerReady(_READY, timeout=ASK_S)).ready:
                return True
    return False


NOT_READY: Final = 400
"""The protocol has a status of 4xx for what is not ready."""

AnswerT = TypeVar("AnswerT")


async def report_of(caller: HttpCaller, path: InferencePath, *, ready_only: bool = False) -> tuple[int, bytes]:
    """Status and body of the answer. `ready_only`: of an index. Raises SlotmeshError."""
    model: Any = {"name": path.model, "version": path.version}
    match path.operation:
        case InferenceOperation.SERVER:
            server = await _asked(caller, lambda stub: stub.ServerMetadata(_SERVER, timeout=ASK_S))
            return 200, convert.server_json(server)
        case InferenceOperation.MODEL_READY:
            asked = wire_pb2.ModelReadyRequest(**model)
            ready = await _asked(caller, lambda stub: stub.ModelReady(asked, timeout=ASK_S))
            return 200 if ready.ready else NOT_READY, convert.ready_json(path.model, is_ready=ready.ready)
        case InferenceOperation.CONFIG:
            of_config = wire_pb2.ModelConfigRequest(**model)
            return 200, convert.config_json(
                await _asked(caller, lambda stub: stub.ModelConfig(of_config, timeout=ASK_S))
            )
        case InferenceOperation.STATISTICS | InferenceOperation.ALL_STATISTICS:
            of_figures = wire_pb2.ModelStatisticsRequest(**model)
            figures = await _asked(caller, lambda stub: stub.ModelStatistics(of_figures, timeout=ASK_S))
            return 200, convert.statistics_json(figures)
        case InferenceOperation.INDEX:
            of_index = wire_pb2.RepositoryIndexRequest(ready=ready_only)
            return 200, convert.index_json(
                await _asked(caller, lambda stub: stub.RepositoryIndex(of_index, timeout=ASK_S))
            )
        case _:
            of_model = wire_pb2.ModelMetadataRequest(**model)
            return 200, convert.metadata_json(
                await _asked(caller, lambda stub: stub.ModelMetadata(of_model, timeout=ASK_S))
            )


_SERVER: Final = wire_pb2.ServerMetadataRequest()


async def _asked(caller: HttpCaller, ask: Callable[[Any], Awaitable[AnswerT]]) -> AnswerT:
    return await ask_routers(caller, lambda address: ask(GRPCInferenceServiceStub(caller.routers.channel(address))))


_MAX_INDEX_BYTES: Final = 4096
PROBES: Final = frozenset({InferenceOperation.LIVE, InferenceOperation.READY})


class _IndexRequest(msgspec.Struct):
    ready: bool = False


class InferenceFront:
    """Answers them."""

    def __init__(self, mesh: MeshView, why_not_ready: Callable[[], str]) -> None:
        """`why_not_ready`: empty while the ingress itself is ready."""
        self._why_not_ready = why_not_ready
        self._inferences = Inferences(mesh)
        self._readiness = RouterReadiness()

    def close(self) -> None:
        """Asks routers no more."""
        self._readiness.close()

    async def probe(self, path: InferencePath, own: HttpCaller, answer: RequestAnswer) -> None:
        """Health, which has no body. `own`: the ingress itself."""
        is_well = path.operation is InferenceOperation.LIVE or await self._is_ready(own)
        await answer.whole(200 if is_well else NOT_READY, _json_lines(), b"")

    async def answer(
        self,
        path: InferencePath,
        caller: HttpCaller,
        held: HeldBody,
        scope: Any,
        headers: RequestHeaders,
        receive: Receive,
        answer: RequestAnswer,
    ) -> None:
        """All else. Raises RequestRefusal, SlotmeshError, ClientLeft."""
        if path.operation is InferenceOperation.UNSUPPORTED:
            raise refusal(501, "this extension of the protocol is not supported", Reason.NOT_IMPLEMENTED)
        if path.operation is InferenceOperation.INFER:
            await self._inferences.answer(path, caller, held, headers, scope["headers"], receive, answer)
            return
        if failure := overlong_endpoint(path.model, "name"):
            raise to_exception(failure)
        is_index = path.operation is InferenceOperation.INDEX
        ready_only = is_index and await self._ready_only(held, receive, headers)
        status, body = await report_of(caller, path, ready_only=ready_only)
        await answer.whole(status, _json_lines(), body)

    async def _is_ready(self, own: HttpCaller) -> bool:
        return not self._why_not_ready() and await self._readiness.is_one_ready(own)

    async def _ready_only(self, held: HeldBody, receive: Receive, headers: RequestHeaders) -> bool:
        body = await held.read(receive, headers)
        try:
            if len(body) > _MAX_INDEX_BYTES:
                text = f"the body has at most {_MAX_INDEX_BYTES:,} bytes: a JSON object with the flag ready"
                raise refusal(413, text, Reason.PAYLOAD_TOO_LARGE)
            return bool(body) and msgspec.json.decode(body, type=_IndexRequest).ready
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise refusal(400, "the body must be a JSON object, with the flag ready at most") from None


def _json_lines() -> list[tuple[bytes, bytes]]:
    return [(b"content-type", JSON_TYPE.encode())]
