"""A mesh of models, and a stub for the first router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest_asyncio

from slotmesh import testing
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import open_channel
from slotmesh.testing.meshes import RunningMesh
from tests.contract.inference.handlers import Batches, Model, Only, Several, double

TRAFFIC = {
    "model": {"model-v1": 1.0, "model-v2": 0.0},
    "batches": {"batches": 1.0},
    "only": {"only": 1.0},
    "several": {"several": 1.0},
    "double": {"double": 1.0},
    "mixed": {"only": 0.5, "model-v2": 0.5},
}


@dataclass
class Models:
    """What tests talk to."""

    mesh: RunningMesh
    stub: Any
    address: str


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def models() -> AsyncIterator[Models]:
    backends: dict[str, Any] = {
        "model-v1": Model,
        "model-v2": Model,
        "batches": Batches,
        "only": Only,
        "several": Several,
        "double": double,
    }
    async with testing.mesh(backends, traffic=TRAFFIC) as mesh:
        address = mesh.router_addresses[0]
        async with open_channel(address) as channel:
            yield Models(mesh, GRPCInferenceServiceStub(channel), address)
