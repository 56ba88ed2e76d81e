"""The mesh of models that gRPC is tested with, behind an ingress."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.contract.inference.conftest import TRAFFIC
from tests.contract.inference.handlers import Batches, Model, Only, Several, double
from tests.support.ingresses import ServedMesh, served_mesh

MAX_BODY = 6 * 2**20
"""More than an rpc takes."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served() -> AsyncIterator[ServedMesh]:
    backends: dict[str, Any] = {
        "model-v1": Model,
        "model-v2": Model,
        "batches": Batches,
        "only": Only,
        "several": Several,
        "double": double,
    }
    both = {"both": {"model-v1": 0.5, "model-v2": 0.5}}
    async with served_mesh(backends, traffic=TRAFFIC | both, max_body_size=MAX_BODY) as mesh:
        yield mesh
