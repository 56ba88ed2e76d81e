"""What is told of models, as messages of the Open Inference Protocol.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from router_service.core.routing.models import ModelFigures, ModelState
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.datatypes import BYTES
from slotmesh.oip.service import BACKEND, PLATFORM
from slotmesh.oip.signatures import UNKNOWN_DIMENSION, MethodTensors, TensorType


def metadata_to_wire(
    model: str, versions: Sequence[str], method: str, tensors: MethodTensors | None
) -> wire_pb2.ModelMetadataResponse:
    """What an endpoint takes and gives. `tensors` is None where no replica has told it, `method` is empty then."""
    wire = wire_pb2.ModelMetadataResponse(name=model, versions=versions, platform=PLATFORM)
    if method:
        wire.properties["method"] = method
    if tensors is not None:
        for each, into in ((tensors.inputs, wire.inputs), (tensors.outputs, wire.outputs)):
            for one in each:
                into.add(name=one.name, datatype=one.datatype, shape=one.shape)
    return wire


def config_to_wire(model: str, method: str, tensors: MethodTensors | None) -> wire_pb2.ModelConfigResponse:
    """The same in the form of Triton's configuration."""
    config = wire_pb2.ModelConfig(name=model, platform=PLATFORM, backend=BACKEND)
    if method:
        config.parameters["method"].string_value = method
    if tensors is None:
        return wire_pb2.ModelConfigResponse(config=config)
    config.max_batch_size = tensors.batch_size
    config.model_transaction_policy.decoupled = tensors.yields
    if tensors.batch_size:
        config.dynamic_batching.SetInParent()
    for each in tensors.inputs:
        config.input.add(
            name=each.name, data_type=_type_of(each), dims=_dims(each, tensors.batch_size), optional=each.optional
        )
    for each in tensors.outputs:
        config.output.add(name=each.name, data_type=_type_of(each), dims=_dims(each, tensors.batch_size))
    return wire_pb2.ModelConfigResponse(config=config)


def statistics_to_wire(figures: Iterable[ModelFigures]) -> wire_pb2.ModelStatisticsResponse:
    """What was counted."""
    wire = wire_pb2.ModelStatisticsResponse()
    for each in figures:
        stats = wire.model_stats.add(
            name=each.endpoint,
            version=each.backend,
            inference_count=each.succeeded,
            execution_count=each.succeeded,
        )
        told = stats.inference_stats
        told.success.count, told.success.ns = each.succeeded, each.success_ns
        told.fail.count = each.failed
        told.queue.count, told.queue.ns = each.queued, each.queue_ns
        told.compute_infer.count, told.compute_infer.ns = each.computed, each.compute_ns
    return wire


def index_to_wire(states: Iterable[ModelState]) -> wire_pb2.RepositoryIndexResponse:
    """What there is."""
    wire = wire_pb2.RepositoryIndexResponse()
    for each in states:
        wire.models.add(name=each.endpoint, version=each.backend, state=each.state, reason=each.reason)
    return wire


def _type_of(tensor: TensorType) -> Any:
    name = "STRING" if tensor.datatype == BYTES else tensor.datatype
    return wire_pb2.DataType.Value(f"TYPE_{name}")


def _dims(tensor: TensorType, batch_size: int) -> Sequence[int]:
    """The shape, but for its first dimension where that is the rows of a batch."""
    if not batch_size:
        return tensor.shape
    return tensor.shape[1:] or (UNKNOWN_DIMENSION,)
