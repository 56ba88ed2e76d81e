"""What is told of models: readiness, metadata, configuration, statistics and the index."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.version import VERSION
from tests.contract.inference.conftest import TRAFFIC, Models
from tests.contract.inference.inference_client import request, told

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_server(models: Models) -> None:
    assert (await models.stub.ServerLive(pb.ServerLiveRequest())).live
    assert (await models.stub.ServerReady(pb.ServerReadyRequest())).ready
    metadata = await models.stub.ServerMetadata(pb.ServerMetadataRequest())
    assert (metadata.name, metadata.version) == ("slotmesh", VERSION)
    assert "statistics" in metadata.extensions


async def test_ready(models: Models) -> None:
    for version in ("", "model-v1", "model-v2"):
        assert (await models.stub.ModelReady(pb.ModelReadyRequest(name="model", version=version))).ready


async def test_metadata_is_what_annotations_say(models: Models) -> None:
    told = await models.stub.ModelMetadata(pb.ModelMetadataRequest(name="batches"))
    assert (list(told.versions), told.platform, told.properties["method"]) == (["batches"], "slotmesh_python", "infer")
    assert _tensors(told.inputs) == [("x", "FP32", [-1])]
    assert _tensors(told.outputs) == [("output", "FP32", [-1])]
    only = await models.stub.ModelMetadata(pb.ModelMetadataRequest(name="only"))
    assert (only.properties["method"], _tensors(only.outputs)) == ("classify", [("output", "INT64", [-1])])
    assert list((await models.stub.ModelMetadata(pb.ModelMetadataRequest(name="model"))).versions) == [
        "model-v1",
        "model-v2",
    ]
    assert not (await models.stub.ModelMetadata(pb.ModelMetadataRequest(name="several"))).inputs


async def test_configuration(models: Models) -> None:
    config = (await models.stub.ModelConfig(pb.ModelConfigRequest(name="batches"))).config
    assert (config.name, config.backend, config.max_batch_size) == ("batches", "python", 8)
    assert config.HasField("dynamic_batching")
    (tensor,) = config.input
    assert (tensor.name, tensor.data_type, list(tensor.dims)) == ("x", pb.TYPE_FP32, [-1])
    assert config.parameters["method"].string_value == "infer"
    plain = (await models.stub.ModelConfig(pb.ModelConfigRequest(name="model", version="model-v2"))).config
    assert (plain.max_batch_size, plain.model_transaction_policy.decoupled) == (0, False)


async def test_statistics_count_calls(models: Models) -> None:
    def of(response: Any) -> Any:
        (found,) = response.model_stats
        return found

    asked = pb.ModelStatisticsRequest(name="double")
    before = of(await models.stub.ModelStatistics(asked))
    await models.stub.ModelInfer(request("double", {"x": np.ones(1)}))
    with pytest.raises(grpc.aio.AioRpcError):
        await models.stub.ModelInfer(request("double", {"y": np.ones(1)}))
    after = of(await models.stub.ModelStatistics(asked))
    assert (after.name, after.version) == ("double", "double")
    assert after.inference_count == before.inference_count + 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert after.inference_stats.fail.count == before.inference_stats.fail.count + 1
    everything = await models.stub.ModelStatistics(pb.ModelStatisticsRequest())
    assert {(each.name, each.version) for each in everything.model_stats} == {
        (name, backend) for name, weights in TRAFFIC.items() for backend in weights
    }


async def test_the_index(models: Models) -> None:
    index = await models.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    assert [(each.name, each.version) for each in index.models] == sorted(
        (name, backend) for name, weights in TRAFFIC.items() for backend in weights
    )
    assert {(each.state, each.reason) for each in index.models} == {("READY", "")}


async def test_what_there_is_not(models: Models) -> None:
    stub = models.stub
    cases = [
        (stub.ModelReady, pb.ModelReadyRequest(name="nowhere"), "ENDPOINT_NOT_FOUND"),
        (stub.ModelMetadata, pb.ModelMetadataRequest(name="model", version="3"), "BACKEND_NOT_FOUND"),
        (stub.ModelConfig, pb.ModelConfigRequest(name="nowhere"), "ENDPOINT_NOT_FOUND"),
        (stub.ModelStatistics, pb.ModelStatisticsRequest(name="nowhere"), "ENDPOINT_NOT_FOUND"),
        (stub.ModelStatistics, pb.ModelStatisticsRequest(version="3"), "BAD_REQUEST"),
        (stub.ModelMetadata, pb.ModelMetadataRequest(), "BAD_REQUEST"),
        (stub.RepositoryIndex, pb.RepositoryIndexRequest(repository_name="x"), "BAD_REQUEST"),
    ]
    for method, asked, reason in cases:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(asked)
        assert told(caught.value)[1:] == (reason, "no")


def _tensors(tensors: Any) -> list[tuple[str, str, list[int]]]:
    return [(each.name, each.datatype, list(each.shape)) for each in tensors]
