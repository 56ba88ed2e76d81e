"""Arrays from a client's hands to a handler's and back, through a whole mesh."""

from __future__ import annotations

import numpy as np
import pytest

import slotmesh
from slotmesh import testing
from tests.contract.array_handlers import Arrays

pytestmark = pytest.mark.asyncio


@pytest.mark.timeout(90)
async def test_arrays_travel_through_a_mesh() -> None:
    async with testing.mesh({"Arrays": Arrays}) as mesh:
        arrays = mesh.endpoint("Arrays")
        rows = np.arange(3000, dtype=np.float32).reshape(1000, 3)
        scaled = await arrays.scale.map(rows)
        assert np.array_equal(scaled, 2 * rows)
        assert {row.dtype for row in scaled} == {np.dtype(np.float32)}
        assert await arrays.sums.map(rows) == rows.sum(axis=1).tolist()
        assert await arrays.total(rows[1]) == 12.0

        octets = arrays.options(content_type="application/octet-stream")
        assert await octets.scale.map(rows) == [(2 * row).tobytes() for row in rows]

        large = np.random.default_rng(1).random((1000, 1000))  # 8 MB: in chunks
        assert np.array_equal(await arrays.echo(large), large)

        with pytest.raises(slotmesh.InvalidArgument, match=r"args\[0\]\[2\]: expected a number, got str"):
            await arrays.norm([1.0, 2.0, "x"])
