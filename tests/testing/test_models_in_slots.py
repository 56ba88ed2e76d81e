"""Reservations that name a model: the call in the slot has it."""

from __future__ import annotations

import pytest

import slotmesh
import slotmesh.testing


class Hub:
    @slotmesh.multiplexed(max_models=2)
    async def load(self, model_id: str) -> str:
        return f"model {model_id}"

    async def predict(self) -> str:
        return await self.load(slotmesh.context().model_id)


@pytest.mark.asyncio
async def test_a_call_in_a_slot_needs_the_model_that_the_slot_was_reserved_for() -> None:
    async with slotmesh.testing.mesh({"hub": Hub}) as mesh:
        hub = mesh.endpoint("hub")
        async with hub.reserve(model_id="a") as slot:
            assert await slot.predict() == "model a"
        async with hub.options(model_id="b").reserve() as slot:
            assert await slot.predict() == "model b"
        async with hub.options(model_id="b").reserve(model_id="a") as slot:
            assert await slot.predict() == "model a"
