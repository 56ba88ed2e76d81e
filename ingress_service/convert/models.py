"""What routers tell of models, as JSON of the Open Inference Protocol. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.json_answers import metadata_to_json, server_to_json
from slotmesh.oip.signatures import MethodTensors, TensorType


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
    said: dict[str, Any] = {
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
        said["dynamic_batching"] = {}
    return msgspec.json.encode(said)


def statistics_json(wire: wire_pb2.ModelStatisticsResponse) -> bytes:
    """What a router has counted. What nobody counts is 0, as over gRPC: clients read it."""
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
    told = wire.inference_stats
    nothing = wire_pb2.StatisticDuration()
    durations = {
        "success": told.success,
        "fail": told.fail,
        "queue": told.queue,
        "compute_input": nothing,
        "compute_infer": told.compute_infer,
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
