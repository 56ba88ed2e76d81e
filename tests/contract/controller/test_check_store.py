"""A state file that cannot be written: the leader reports it, `check` finds it, and it ends when the file can be."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import StoreWriteFailed
from controller_service.store.sqlite.state_file import PROBE_CHECKS, StateFile
from slotmesh.spec.model import Backend
from tests.support.controllers import eventually
from tests.support.metrics import scraped
from tests.support.shell import slotmesh
from tests.support.standing_by import LivingController

MESH = "backends: {v1: {}}\nendpoints: {e: {traffic: {v1: 1.0}}}\n"


@pytest.mark.asyncio
async def test_it_is_told_by_the_leader_and_found_by_check(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "moved"
    async with LivingController(state, metrics_port=0) as controller:
        await controller.leads()
        await controller.apply(MESH)

        async def problem() -> str:
            standing = await controller.standing()
            assert standing.leads
            return standing.store_problem

        async def failing() -> float:
            return (await scraped(controller.metrics.address or "")).total("slotmesh_controller_store_failing")

        assert not await problem()
        assert (await readyz(controller))[0] == 200
        assert await failing() == 0
        state.rename(elsewhere)
        await eventually(problem, what="the leader tells of it, though nothing was written", timeout=30)
        with pytest.raises(grpc.aio.AioRpcError):
            await controller.apply(MESH.replace("v1: {}", "v1: {num_replicas: 2}"))
        assert f"{state}: was moved, deleted or replaced" in await problem()
        assert await failing() == 1
        status, text = await readyz(controller)
        assert (status, text.startswith(f"the state cannot be written: {state}: was moved")) == (503, True)
        found = await slotmesh("check", "--address", controller.address)
        assert found.status == 4
        assert f"{controller.address} cannot write its state, and refuses changes: {state}: was moved" in found.out
        shown = await slotmesh("status", "--address", controller.address)
        assert f"The state cannot be written, and changes are refused: {state}: was moved" in shown.out
        assert " leader, term 1 since 20" in shown.out
        document = json.loads((await slotmesh("status", "--json", "--address", controller.address)).out)
        assert document["store_problem"] == await problem()
        elsewhere.rename(state)

        async def is_over() -> bool:
            return not await problem()

        await eventually(is_over, what="it ends without a change", timeout=30)
        assert (await readyz(controller))[0] == 200
        await controller.apply(MESH.replace("v1: {}", "v1: {num_replicas: 2}"))
        await controller.end()
    async with LivingController(state) as controller:
        await controller.leads()
        past = (await slotmesh("events", f"controller/{controller.address}", "--address", controller.address)).out
        told = (await slotmesh("events", "controller/*", "--output", "json", "--address", controller.address)).out
        kinds = [it["kind"] for it in json.loads(told)["events"]]
        assert kinds == ["controller-leads", "state-not-writable", "state-writable", "controller-leads"]
        assert f"{state}: was moved" in json.loads(told)["events"][1]["message"]
        assert "controller-leads" in past


async def readyz(controller: LivingController) -> tuple[int, str]:
    """Status and text."""

    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://{controller.metrics.address}/readyz", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


def opened(tmp_path: Path) -> StateFile:
    return StateFile.open(tmp_path / "state", lambda: ("a" * 32, Desired()))


def test_a_file_that_was_moved_is_seen_by_the_next_check_and_so_is_its_return(tmp_path: Path) -> None:
    file = opened(tmp_path)
    before = file.desired
    for _ in range(2 * PROBE_CHECKS):
        assert not file.probe()
    assert file.desired is before
    (tmp_path / "state").rename(tmp_path / "moved")
    assert "was moved, deleted or replaced" in file.probe()
    with pytest.raises(StoreWriteFailed):
        file.commit(ChangeSet(put_backends=(Backend(name="b"),)), before.revision)
    (tmp_path / "moved").rename(tmp_path / "state")
    assert not file.probe(), "after a failure each check tries it"
    file.commit(ChangeSet(put_backends=(Backend(name="b"),)), before.revision)
    file.close()


def test_a_file_without_room_for_a_change_beside_it_cannot_be_written(tmp_path: Path) -> None:
    """What shows itself in a write only: one is tried now and then, not at each check."""
    file = opened(tmp_path)
    taken = tmp_path / "state-room"
    taken.mkdir()
    problems = [file.probe() for _ in range(PROBE_CHECKS)]
    assert [bool(it) for it in problems] == [False] * (PROBE_CHECKS - 1) + [True]
    assert "there is no room for a change beside it" in problems[-1]
    taken.rmdir()
    assert not file.probe()
    assert not taken.exists()
    file.close()
