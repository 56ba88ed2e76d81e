"""Broadcasts and ranks with replica processes of which some are killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import slotmesh
from tests.support.controllers import eventually
from tests.support.mesh import started_mesh
from tests.support.wait import wait_until, within


@pytest.mark.asyncio
async def test_each_process_has_its_own_outcome_and_a_killed_one_is_replaced_under_its_rank() -> None:
    async with (
        started_mesh("tests.e2e.rank_handlers:Ranked", replicas=4) as mesh,
        slotmesh.connect(mesh.router_address) as client,
    ):
        ranked = client.endpoint("Ranked")
        pids = await mesh.replica_pids()
        first = await within(ranked.broadcast.where(), "all replicas")
        first.raise_for_failures()
        assert {name: pid for name, (_, _, pid, _) in first.ok.items()} == pids
        assert sorted(rank for rank, _, _, _ in first.ok.values()) == [0, 1, 2, 3]
        assert {(at_start == rank, number) for rank, at_start, _, number in first.ok.values()} == {(True, 4)}

        waiting = asyncio.ensure_future(ranked.broadcast.wait())

        async def all_wait() -> bool:
            return bool(sum((await ranked.broadcast.waits()).ok.values()) == 4)

        await eventually(all_wait, what="the calls have begun")
        killed = await mesh.kill_replica()
        result: Any = await within(_let_go(ranked, waiting), "the outcome of each")
        assert sorted(result) == sorted(pids)
        assert dict(result.ok) == {name: pid for name, pid in pids.items() if name != killed}
        assert isinstance(result.failed[killed], slotmesh.ReplicaLost)
        assert result.failed[killed].executed is slotmesh.Executed.UNKNOWN

        await mesh.wait_for_replicas(4, without=killed)
        again = await within(ranked.broadcast.where(), "all replicas, and the new one")
        assert killed not in again
        kept = {name: it[0] for name, it in first.ok.items() if name != killed}
        assert {name: rank for name, (rank, *_) in again.ok.items() if name in kept} == kept
        assert sorted(rank for rank, *_ in again.ok.values()) == [0, 1, 2, 3]


async def _let_go(ranked: Any, waiting: asyncio.Future[Any]) -> Any:
    """Lets the calls end at all replicas that are left, however often that takes."""
    await ranked.broadcast.go_on()
    await wait_until(waiting.done, what="all have an outcome")
    return await waiting
