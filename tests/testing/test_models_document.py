"""docs/models.md: its example runs; and calls of a real mesh go where their model is loaded."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.testing import Backend
from tests.support.mesh import ROOT
from tests.support.snippets import run_python, snippets_of

PYTHON = [each for each in snippets_of(ROOT / "docs" / "models.md") if each.language == "python"]

LOADS: dict[str, list[str]] = defaultdict(list)
"""By model, the replicas that have loaded it."""


class Hub:
    @slotmesh.multiplexed(max_models=4)
    async def load(self, model_id: str) -> str:
        LOADS[model_id].append(slotmesh.replica().replica_id)
        return model_id

    async def predict(self) -> str:
        return await self.load(slotmesh.context().model_id)


@pytest.mark.asyncio
async def test_the_example_runs() -> None:
    assert len(PYTHON) == 1
    await run_python("models_document", [], PYTHON)


@pytest.mark.asyncio
async def test_each_model_is_loaded_at_one_replica_for_all_its_calls() -> None:
    LOADS.clear()
    async with slotmesh.testing.mesh({"hub": Backend(Hub, num_replicas=3)}) as mesh:
        hub = mesh.endpoint("hub")
        models = [f"m{number}" for number in range(8)]
        for _ in range(3):
            called = await asyncio.gather(*[hub.options(model_id=each).predict() for each in models for _ in range(5)])
            assert called == [each for each in models for _ in range(5)]
        assert {each: len(replicas) for each, replicas in LOADS.items()} == dict.fromkeys(models, 1)
        async with hub.options(model_id="m1").reserve() as slot:
            assert slot.replica_id == LOADS["m1"][0]
            assert await slot.predict() == "m1"
