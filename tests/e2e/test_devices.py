"""Devices of real processes: kills, rollouts, scaling and restarts of the controller never give one to two replicas."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slotmesh.cli.controller_view import READY_STATE
from slotmesh.cli.operator import Operator
from slotmesh.errors import SlotmeshError
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import Mesh
from tests.support.controllers import eventually
from tests.support.lone_controller import LoneController, lone_controller
from tests.support.mesh import mesh_run
from tests.support.shell import slotmesh

pytestmark = pytest.mark.asyncio

SEED = 35
MESH = """
backends:
  whole: {{handler: 'tests.e2e.device_handlers:Holder', num_replicas: {whole}, devices: {{cuda: 1}}, min_ready: 0s,
    graceful_timeout: 1s, user_config: {{folder: {folder}, variable: CUDA_VISIBLE_DEVICES, version: {version}}}}}
  shares: {{handler: 'tests.e2e.device_handlers:Holder', num_replicas: {shares}, devices: {{fpga: 0.5}}, min_ready: 0s,
    graceful_timeout: 1s, user_config: {{folder: {folder}, variable: FPGAS, places: 2, version: {version}}}}}
"""
POOLS = ("--devices=cuda=0-3,fpga=a,b", "--device-variables=fpga=FPGAS")


class Wanted:
    """What should run, and the operator's view of what does."""

    def __init__(self, mesh: LoneController, folder: Path) -> None:
        self.mesh, self.folder = mesh, folder
        self.whole, self.shares, self.version = 4, 4, 0

    def document(self) -> Mesh:
        text = MESH.format(whole=self.whole, shares=self.shares, version=self.version, folder=self.folder)
        return parse_mesh(text)

    async def apply(self) -> None:
        async with Operator.at(self.mesh.address) as operator:
            await operator.apply(self.document())

    async def settled(self) -> None:
        """Returns once what is wanted runs, and nothing else; each device has the holders that it should have."""

        async def is_settled() -> bool:
            async with Operator.at(self.mesh.address) as operator:
                snapshot = await operator.snapshot()
            replicas = snapshot.members.replicas
            ready = [it for it in replicas if it.state == READY_STATE and not it.outdated]
            numbers = [sum(it.backend == name for it in ready) for name in ("whole", "shares")]
            held = {f"{pool.name}={it.name}": it for pool in snapshot.device_pools for it in pool.devices}
            free = [sum(it.free_share for it in pool.devices) for pool in snapshot.device_pools]
            return (
                numbers == [self.whole, self.shares]
                and len(ready) == len(replicas)
                and free == [4 - self.whole, 2 - self.shares / 2]
                and all(it.replica_id in held[it.devices[0].removesuffix("@0.5")].replica_ids for it in replicas)
            )

        await eventually(is_settled, what=f"{self.whole} and {self.shares} replicas, {self.taken()}", timeout=60.0)

    def taken(self) -> str:
        """What handlers found to be taken."""
        file = self.folder / "taken"
        return file.read_text("utf-8") if file.exists() else ""

    async def ready_pids(self) -> list[int]:
        members = await self.mesh.members()
        return sorted(it.pid for it in members.replicas if it.state == READY_STATE)


async def take_step(wanted: Wanted, chance: random.Random) -> str:
    """One of all that happens to a mesh."""
    match chance.choice(("kill", "kill", "terminate", "kill two", "roll out", "scale", "restart", "restart and kill")):
        case "kill":
            _signal(chance, await wanted.ready_pids(), 1, signal.SIGKILL)
        case "terminate":
            _signal(chance, await wanted.ready_pids(), 1, signal.SIGTERM)
        case "kill two":
            _signal(chance, await wanted.ready_pids(), 2, signal.SIGKILL)
        case "roll out":
            wanted.version += 1
            await wanted.apply()
        case "scale":
            wanted.whole, wanted.shares = chance.randint(1, 4), chance.randint(1, 4)
            await wanted.apply()
        case restart:
            pids = await wanted.ready_pids()
            await wanted.mesh.kill()
            if restart == "restart and kill":
                _signal(chance, pids, 2, signal.SIGKILL)
            await wanted.mesh.start()
    return wanted.taken()


def _signal(chance: random.Random, pids: Collection[int], count: int, number: signal.Signals) -> None:
    for pid in chance.sample([*pids], min(count, len(pids))):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def run_steps(folder: Path, steps: int) -> None:
    chance = random.Random(SEED)
    spec = MESH.format(whole=4, shares=4, version=0, folder=folder)
    async with lone_controller(folder, spec, f"--state={folder / 'mesh.state'}", *POOLS) as mesh:
        wanted = Wanted(mesh, folder)
        await wanted.settled()
        for _ in range(steps):
            assert not await take_step(wanted, chance)
            if chance.random() < 0.5:
                await wanted.settled()
        wanted.whole = wanted.shares = 4
        await wanted.apply()
        await wanted.settled()
        wanted.whole = wanted.shares = 0
        await wanted.apply()
        await wanted.settled()
        assert not wanted.taken()
    seen = {tuple(line.split()[1:]) for line in (folder / "seen").read_text("utf-8").splitlines()}
    cuda, fpga = {("CUDA_VISIBLE_DEVICES", str(it)) for it in range(4)}, {("FPGAS", it) for it in "ab"}
    assert seen == cuda | fpga, "each handler sees one device, and none of the other pool"


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_no_device_has_two_holders_and_none_is_lost(tmp_path: Path) -> None:
    await run_steps(tmp_path, 6)


@pytest.mark.long
@pytest.mark.timeout(3_600)
async def test_no_device_has_two_holders_and_none_is_lost_in_200_steps(tmp_path: Path) -> None:
    await run_steps(tmp_path, 200)


@pytest.mark.timeout(300)
async def test_a_machine_with_fewer_devices_keeps_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    spec = MESH.format(whole=3, shares=0, version=0, folder=tmp_path)
    async with lone_controller(tmp_path, spec, f"--state={tmp_path / 'mesh.state'}", *POOLS) as mesh:
        wanted = Wanted(mesh, tmp_path)
        wanted.whole, wanted.shares = 3, 0
        await wanted.settled()
        before = await wanted.ready_pids()
        await mesh.kill()
        mesh.use_flags("--devices=cuda=0-1,fpga=a,b")
        await mesh.start()
        await mesh.ready(3)
        assert await wanted.ready_pids() == before
        async with Operator.at(mesh.address) as operator:
            with pytest.raises(SlotmeshError, match="want 4 of cuda, which has 2: whole 4"):
                await operator.apply(Mesh(backends=(replace(wanted.document().backends[0], num_replicas=4),)))
            devices = {it.devices[0]: it.pid for it in (await mesh.members()).replicas}
            os.kill(devices["cuda=0"], signal.SIGKILL)
            os.kill(devices["cuda=2"], signal.SIGKILL)

            async def deferred() -> str:
                return (await operator.snapshot()).deferred_starts.get("whole", "")

            why = await eventually(deferred, what="the reason")
            assert why.startswith("no device is free: 1 of cuda is wanted, and 2 of 2 are held (by whole-")
        await mesh.ready(2)
        members = await mesh.members()
        assert sorted(it.devices[0] for it in members.replicas if it.state == READY_STATE) == ["cuda=0", "cuda=1"]
        assert sum(it.restart_count for it in members.replicas) <= 2


SEES = """
import os

class Sees:
    async def cuda(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]
"""
FILE = """
backends: {b: {handler: 'sees:Sees', num_replicas: %d, devices: {cuda: 1}, min_ready: 0s, version: %s}}
endpoints: {b: {traffic: {b: 1.0}}}
"""


@pytest.mark.timeout(300)
async def test_a_local_mesh_has_devices_and_apply_states_how_a_rollout_proceeds_without_a_spare_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "sees.py").write_text(SEES)
    file = tmp_path / "mesh.yaml"
    file.write_text(FILE % (1, "one"))
    ports = ("--router-port=0", "--controller-port=0")
    wrong = await slotmesh("run", str(file), *ports, "--devices=0-3")
    assert wrong.status == 2
    assert "'0-3': write POOL=DEVICE" in " ".join(wrong.err.split())
    async with mesh_run("mesh.yaml", *ports, "--devices=cuda=7", cwd=tmp_path) as mesh:
        await mesh.wait_ready()
        assert (await slotmesh("call", "b", "cuda", "--address", mesh.router_address)).out == '"7"\n'
        file.write_text(FILE % (1, "two"))
        at = ("--address", mesh.controller_address)
        planned = await slotmesh("apply", str(file), "--dry-run", *at)
        assert "warning: backend/b: no device is spare (1 of cuda is wanted, and 1 of 1 are held (by b-" in planned.err
        assert "its rollout stops a replica before it starts one" in planned.err
        file.write_text(FILE % (2, "two"))
        refused = await slotmesh("apply", str(file), *at)
        assert refused.status == 1
        assert "all backends together want 2 of cuda, which has 1: b 2 (2 × 1)" in refused.err
