"""A rollback over code and traffic under load: traffic moves to a backend when the restored code runs there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.e2e.test_bad_code import (
    Shop,
    called,
    controller_flags,
    eventually,
    free_ports,
    is_rolled_out,
    port_of,
    process,
    responds,
)
from tests.support.shell import Said
from tests.support.shell import slotmesh as command

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.long]

STABLE = """
class Shop:
    async def answer(self): return "stable"
"""
OLD = """
import pathlib, time

class Shop:
    def __init__(self):
        while pathlib.Path({gate!r}).exists():  # it starts when the test lets it
            time.sleep(0.02)

    async def answer(self): return "old"
"""
BROKEN = """
class Shop:
    async def answer(self): raise ValueError("the code that is left")
"""


def mesh(version: str, traffic: dict[str, float], *, stable: bool = True) -> str:
    backends = {"v1": {"handler": "shop.app:Shop", "version": version, "num_replicas": 2}}
    if stable:
        backends["v2"] = {"handler": "shop.stable:Shop", "version": "1", "num_replicas": 2}
    return json.dumps({"backends": backends, "endpoints": {"e": {"traffic": traffic}}})


class Trial:
    """A mesh whose endpoint has led to v1 with the old code, and leads to v2 now, as v1 has code that fails."""

    def __init__(self, folder: Path) -> None:
        root, (controller, router) = folder / "project", free_ports(2)
        (root / "shop").mkdir(parents=True)
        self.shop = Shop(root, f"127.0.0.1:{controller}", f"127.0.0.1:{router}")
        self.gate, self.log = folder / "gate", folder / "log"
        self.shop.write("__init__.py", "")
        self.shop.write("stable.py", STABLE)
        self.shop.write("app.py", OLD.format(gate=str(self.gate)))
        self.old = 0
        """The revision with the old code."""

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[asyncio.subprocess.Process]:
        flags = controller_flags(self.shop.root, port_of(self.shop.controller))
        async with process(*flags, root=self.shop.root, log=self.log) as running:
            await eventually(lambda: responds(self.shop), "the controller leads")
            yield running

    @asynccontextmanager
    async def router(self) -> AsyncIterator[None]:
        port = port_of(self.shop.router)
        flags = ("router_service", f"--port={port}", f"--controller={self.shop.controller}", "--router-id=r")
        async with process(*flags, root=self.shop.root, log=self.log):
            yield

    async def apply(self, text: str, *flags: str) -> Said:
        (self.shop.root / "mesh.yaml").write_text(text)
        return await self.shop.apply("--wait", "--timeout", "80s", *flags)

    async def deploy(self, *, stable: bool = True) -> None:
        """The old code with all of the traffic; then code that fails, without traffic, beside v2.

        `stable`: v2 is there from the start.
        """
        said = await self.apply(mesh("1", {"v1": 1}, stable=stable))
        assert said.status == 0, f"{said.err}\n{self.log.read_text()}"
        async with Operator.at(self.shop.controller) as operator:
            self.old = (await operator.configured())[0]
        self.shop.write("app.py", BROKEN)
        said = await self.apply(mesh("2", {"v2": 1}))
        assert said.status == 0, said.err
        await eventually(lambda: is_rolled_out(self.shop), "the code that fails is rolled out")

    async def command(self, *arguments: str) -> Said:
        return await command(*arguments, env={"SLOTMESH_ADDRESS": self.shop.controller}, timeout=90.0)

    async def weights(self) -> dict[str, float]:
        async with Operator.at(self.shop.controller) as operator:
            return dict((await operator.endpoint("e")).traffic.weights)

    async def require(self, answer: str) -> None:
        async with slotmesh.connect(self.shop.router) as client:
            endpoint = client.endpoint("e").options(timeout=60.0)
            assert {await endpoint.answer() for _ in range(40)} == {answer}

    async def is_waiting(self) -> bool:
        async with Operator.at(self.shop.controller) as operator:
            shift = await operator.shift("e")
        return shift is not None and "0 of 2 new replicas are ready" in shift.waits_for


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stable", [True, False], ids=["the other backend stays", "the other backend is deleted"])
async def test_no_call_reaches_the_code_that_a_rollback_leaves(stable: bool, tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    async with trial.router(), trial.controller():
        await trial.deploy(stable=stable)
        async with called(trial.shop):
            await eventually(lambda: _answered(trial, "stable"), "clients call")
            said = await trial.command("rollback", str(trial.old), "--yes", "--wait")
            assert said.status == 0, f"{said.err}\n{trial.log.read_text()}"
            assert "replicas of v1 are started or replaced" in said.err
            assert "traffic of e stays as it is until the rollout of v1 is complete" in said.err
            await trial.require("old")
            assert await trial.weights() == {"v1": 1.0}
        assert set(trial.shop.answers) == {"stable", "old"}, trial.shop.answers
        async with Operator.at(trial.shop.controller) as operator:
            _, configured, _ = await operator.configured()
        assert {it.name for it in configured.backends} == ({"v1", "v2"} if stable else {"v1"})
        # Undone as a whole: code and traffic.
        if stable:
            said = await trial.command("rollback", "--yes", "--wait")
            assert said.status == 0, said.err
            assert await trial.weights() == {"v2": 1.0}
            await trial.require("stable")


@pytest.mark.timeout(300)
async def test_traffic_waits_over_a_restart_of_the_controller(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    async with trial.router():
        async with trial.controller() as first:
            await trial.deploy()
            trial.gate.touch()
            waiting = asyncio.create_task(
                trial.command("rollback", str(trial.old), "--yes", "--wait", "--timeout", "80s")
            )
            await eventually(trial.is_waiting, "the traffic waits")
            assert "it waits for the rollout of v1" in (await trial.command("traffic", "e")).out
            assert "it waits for the rollout of v1" in (await trial.command("status")).out
            first.kill()
            await asyncio.wait_for(first.wait(), 30.0)
        async with trial.controller():
            await eventually(trial.is_waiting, "the traffic waits for the same rollout")
            assert await trial.weights() == {"v2": 1.0}
            await trial.require("stable")
            assert not waiting.done()
            trial.gate.unlink()
            said = await asyncio.wait_for(waiting, 90.0)
            assert said.status == 0, said.err
            await trial.require("old")


@pytest.mark.timeout(300)
async def test_traffic_stays_where_it_is_if_the_rollout_is_taken_back(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    async with trial.router(), trial.controller():
        await trial.deploy()
        trial.shop.write("app.py", "raise ImportError('no')")
        async with called(trial.shop):
            said = await trial.apply(mesh("3", {"v1": 1}))
            assert said.status == 3, said.err
            assert "rolled back" in said.err
            await eventually(lambda: _has_ended(trial), "the traffic waits no more")
            assert await trial.weights() == {"v2": 1.0}
        assert set(trial.shop.answers) == {"stable"}, trial.shop.answers


async def _answered(trial: Trial, answer: str) -> bool:
    return trial.shop.answers[answer] > 0


async def _has_ended(trial: Trial) -> bool:
    async with Operator.at(trial.shop.controller) as operator:
        shift = await operator.shift("e")
    return (
        shift is not None
        and shift.phase == shift_pb.SHIFT_PHASE_ROLLED_BACK
        and "rollout of v1 was rolled back" in shift.reason
    )
