"""What routers tell of themselves and of models, asked as the caller, as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from ingress_service.convert import models as convert
from ingress_service.core.inference_paths import InferenceOperation, InferencePath
from ingress_service.shell.asking import ASK_S, ask_routers
from ingress_service.shell.callers import HttpCaller
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub

NOT_READY: Final = 400
"""The protocol has a status of 4xx for what is not ready."""

AnswerT = TypeVar("AnswerT")


async def told_of(caller: HttpCaller, path: InferencePath, *, ready_only: bool = False) -> tuple[int, bytes]:
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
