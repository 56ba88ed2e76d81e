"""Models and inferences of the Open Inference Protocol: messages of routers, and JSON. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from slotmesh.calls.method_outlines import MethodTensors, TensorType
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.http import metadata_to_json, server_to_json
from slotmesh.oip.model import InferenceAnswer, InferenceRequest, InvalidRequest, ParameterValue, Tensor

_LEAST_INT: Final = -(2**63)
_LARGEST_INT: Final = 2**63 - 1
_LARGEST_UINT: Final = 2**64 - 1


def request_to_wire(request: InferenceRequest) -> wire_pb2.ModelInferRequest:
    """With raw contents. Raises InvalidRequest for a number that none of its fields can hold."""
    wire = wire_pb2.ModelInferRequest(
        model_name=request.model, model_version=request.version, id=request.request_id, raw_input_contents=[]
    )
    for name, value in request.parameters.items():
        _put(wire.parameters[name], name, value)
    for each in request.inputs:
        wire.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        wire.raw_input_contents.append(bytes(each.data))
    for name in request.outputs:
        wire.outputs.add(name=name)
    return wire


def answer_from_wire(wire: wire_pb2.ModelInferResponse) -> InferenceAnswer:
    """Of a request with raw contents, or with no inputs: its elements are raw, too."""
    outputs = [
        Tensor(each.name, each.datatype, tuple(each.shape), data)
        for each, data in zip(wire.outputs, wire.raw_output_contents, strict=True)
    ]
    return InferenceAnswer(model=wire.model_name, version=wire.model_version, request_id=wire.id, outputs=outputs)


def _put(into: wire_pb2.InferParameter, name: str, value: ParameterValue) -> None:
    if isinstance(value, bool):
        into.bool_param = value
    elif isinstance(value, str):
        into.string_param = value
    elif isinstance(value, float):
        into.double_param = value
    elif _LEAST_INT <= value <= _LARGEST_INT:
        into.int64_param = value
    elif 0 < value <= _LARGEST_UINT:
        into.uint64_param = value
    else:
        raise InvalidRequest(f"parameters.{name[:64]}", "is a number of more than 64 bits")


def server_json(wire: wire_pb2.ServerMetadataResponse) -> bytes:
    """Who answers."""
    return server_to_json(wire.version)


def ready_json(name: str, *, is_ready: bool) -> bytes:
    """Whether a model takes calls."""
    return msgspec.json.encode({"name": name, "ready": is_ready})


def metadata_json(wire: wire_pb2.ModelMetadataResponse) -> bytes:
    """What a model takes and gives."""
    inputs, outputs = (
        tuple(TensorType(name=each.name, datatype=each.datatype, shape=tuple(each.shape)) for each in tensors)
        for tensors in (wire.inputs, wire.outputs)
    )
    tensors = MethodTensors(inputs=inputs, outputs=outputs)
    return metadata_to_json(wire.name, list(wire.versions), wire.properties.get("method", ""), tensors)


def config_json(wire: wire_pb2.ModelConfigResponse) -> bytes:
    """The same in the form of Triton's configuration."""
    config = wire.config
    document: dict[str, Any] = {
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "max_batch_size": config.max_batch_size,
        "input": [
            {
                "name": each.name,
                "data_type": wire_pb2.DataType.Name(each.data_type),
                "dims": list(each.dims),
                "optional": each.optional,
            }
            for each in config.input
        ],
        "output": [
            {"name": each.name, "data_type": wire_pb2.DataType.Name(each.data_type), "dims": list(each.dims)}
            for each in config.output
        ],
        "parameters": {name: {"string_value": each.string_value} for name, each in config.parameters.items()},
        "model_transaction_policy": {"decoupled": config.model_transaction_policy.decoupled},
    }
    if config.HasField("dynamic_batching"):
        document["dynamic_batching"] = {}
    return msgspec.json.encode(document)


def statistics_json(wire: wire_pb2.ModelStatisticsResponse) -> bytes:
    """What a router has counted. Figures that it does not count are 0, as over gRPC: clients read them."""
    return msgspec.json.encode({"model_stats": [_figures(each) for each in wire.model_stats]})


def index_json(wire: wire_pb2.RepositoryIndexResponse) -> bytes:
    """What there is."""
    return msgspec.json.encode(
        [
            {"name": each.name, "version": each.version, "state": each.state, "reason": each.reason}
            for each in wire.models
        ]
    )


def _figures(wire: wire_pb2.ModelStatistics) -> dict[str, Any]:
    counted = wire.inference_stats
    nothing = wire_pb2.StatisticDuration()
    durations = {
        "success": counted.success,
        "fail": counted.fail,
        "queue": counted.queue,
        "compute_input": nothing,
        "compute_infer": counted.compute_infer,
        "compute_output": nothing,
    }
    return {
        "name": wire.name,
        "version": wire.version,
        "last_inference": 0,
        "inference_count": wire.inference_count,
        "execution_count": wire.execution_count,
        "inference_stats": {name: {"count": each.count, "ns": each.ns} for name, each in durations.items()},
        "batch_stats": [],
    }
