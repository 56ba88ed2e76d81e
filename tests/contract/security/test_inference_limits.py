"""Clients of the Open Inference Protocol hear of, and call, the models that are their endpoints only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from slotmesh.inference import grpc_inference_service_pb2 as inference_pb2
from tests.contract.security.role_servers import refused
from tests.contract.security.secured_mesh import SecuredMesh, by_token, greeting, secured_mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredMesh]:
    async with secured_mesh(Path(tmp_path_factory.mktemp("tls"))) as running:
        yield running


async def test_models_that_an_invoker_may_not_call_are_not_there_for_it(mesh: SecuredMesh) -> None:
    models = (await mesh.at_router()).inference
    index = inference_pb2.RepositoryIndexRequest()
    for token, known in (("alice", ["mine"]), ("eve", ["mine", "theirs"]), ("vera", ["mine", "theirs"])):
        told = await models.RepositoryIndex(index, metadata=by_token(token))
        assert [each.name for each in told.models] == known
        figures = await models.ModelStatistics(inference_pb2.ModelStatisticsRequest(), metadata=by_token(token))
        assert [each.name for each in figures.model_stats] == known
    theirs = inference_pb2.ModelMetadataRequest(name="theirs")
    code, _, message = await refused(models.ModelMetadata(theirs, metadata=by_token("alice")))
    assert (code, message) == ("NOT_FOUND", "no endpoint is named 'theirs'; there is: mine")
    stream = models.ModelStreamInfer(iter([greeting("theirs")]), metadata=by_token("alice"))
    assert "may not call the endpoint 'theirs'" in (await stream.read()).error_message
    code, *_ = await refused(models.ModelInfer(greeting("mine"), metadata=by_token("vera")))
    assert code == "PERMISSION_DENIED"
