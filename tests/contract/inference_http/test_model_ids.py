"""Models that handlers load by id, as models of the Open Inference Protocol: `ENDPOINT:MODEL_ID`, by HTTP and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

import slotmesh
from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import open_channel
from tests.contract.inference.inference_client import request
from tests.support.ingresses import ServedMesh, served_mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Hub:
    @slotmesh.multiplexed(max_models=2)
    async def load(self, model_id: str) -> str:
        return model_id

    async def infer(self, x: int) -> str:
        model_id = slotmesh.context().model_id
        return f"{await self.load(model_id)} {x}" if model_id else f"none {x}"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hub() -> AsyncIterator[ServedMesh]:
    async with served_mesh({"hub": Hub}) as mesh:
        yield mesh


BODY = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [7]}]}


@pytest.mark.parametrize(
    ("name", "model"), [("hub:ada", "ada"), ("hub%3Aada", "ada"), ("hub:a%2Fb:c", "a/b:c"), ("hub", "none")]
)
async def test_the_path_names_the_model(hub: ServedMesh, name: str, model: str) -> None:
    for path in (f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/hub/infer"):
        answer = await hub.post(path, BODY)
        assert answer.status == 200, answer.json
        assert answer.json["outputs"][0]["data"] == [f"{model} 7"]
        assert answer.json["model_name"] == ("hub" if model == "none" else f"hub:{model}")


async def test_reports_are_those_of_the_endpoint_under_the_name_that_was_asked(hub: ServedMesh) -> None:
    described = await hub.ask("GET", "/v2/models/hub:ada")
    assert (described.json["name"], described.json["versions"]) == ("hub:ada", ["hub"])
    assert (await hub.ask("GET", "/v2/models/hub:ada/ready")).status == 200
    assert (await hub.ask("GET", "/v2/models/nothing:ada/ready")).status == 404
    assert (await hub.ask("GET", "/v2/models/hub:ada/stats")).status == 200


async def test_a_header_must_not_name_another_model(hub: ServedMesh) -> None:
    answer = await hub.ask("POST", "/v2/models/hub:ada/infer", BODY, {"X-Slotmesh-Model-Id": "eve"})
    assert answer.status == 400
    assert "X-Slotmesh-Model-Id" in answer.json["error"]
    same = await hub.ask("POST", "/v2/models/hub/infer", BODY, {"X-Slotmesh-Model-Id": "eve"})
    assert same.json["outputs"][0]["data"] == ["eve 7"]


async def test_the_same_by_grpc(hub: ServedMesh) -> None:
    async with open_channel(hub.mesh.router_addresses[0]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        answer = await stub.ModelInfer(request("hub:ada", {"x": [7]}))
        assert answer.model_name == "hub:ada"
        assert answer.raw_output_contents[0][4:] == b"ada 7"
        assert (await stub.ModelReady(pb.ModelReadyRequest(name="hub:ada"))).ready
        assert (await stub.ModelMetadata(pb.ModelMetadataRequest(name="hub:ada"))).name == "hub:ada"
        with pytest.raises(grpc.aio.AioRpcError, match=r"options\.model_id: at most 1024 bytes"):
            await stub.ModelInfer(request("hub:" + "x" * 1025, {"x": [7]}))
        named = (("slotmesh-model-id", "eve"),)
        answer = await stub.ModelInfer(request("hub", {"x": [7]}), metadata=named)
        assert answer.raw_output_contents[0][4:] == b"eve 7"
        with pytest.raises(grpc.aio.AioRpcError, match="slotmesh-model-id: names another model than model_name"):
            await stub.ModelInfer(request("hub:ada", {"x": [7]}), metadata=named)
        streamed = stub.ModelStreamInfer(iter([request("hub:eve", {"x": [8]})]))
        async for each in streamed:
            assert each.infer_response.raw_output_contents[0][4:] == b"eve 8"
