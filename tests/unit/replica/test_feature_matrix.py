"""Every feature of a call with every kind of executor: one table, so that no kind can be forgotten.

A cell is a feature and a kind. What may differ between kinds is said in `Kind`; all else is the same for all of them.
"""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.testing.backends import kept
from tests.support.fakes.clock import FakeClock
from tests.unit.replica.feature_cells import FEATURES
from tests.unit.replica.feature_kinds import KINDS, Handler, Kind
from tests.unit.replica.hosting import hosting


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("is_whole", [True, False], ids=["one run", "runs of their own"])
@pytest.mark.parametrize("name", FEATURES)
async def test_cell(name: str, is_whole: bool, kind: Kind) -> None:
    async with hosting(Handler, clock=FakeClock(), own_loop=kind.own_loop) as host:
        with kept(Handler):
            await FEATURES[name](host, kind, is_whole)
        host.handler.gate.set()
        await asyncio.wait_for(host.engine.idle(), 5)
        assert host.engine.scheduler.in_use == 0


def test_every_kind_of_executor_is_in_the_table() -> None:
    """Twelve of them, each method of the handler where it can run, and each feature."""
    assert {kind.method for kind in KINDS} == {name for name in vars(Handler) if not name.startswith("_")}
    assert (len(KINDS), len(FEATURES)) == (12, 20)
