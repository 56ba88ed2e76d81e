"""An older state file is put back under load, with real processes: no call fails, and no replica is ended."""

from __future__ import annotations

import asyncio
import shutil
from itertools import count
from pathlib import Path
from typing import Final

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.spec.document import parse_mesh
from tests.support.controllers import eventually
from tests.support.lone_controller import GONE_S, LoneController, lone_controller
from tests.support.shell import slotmesh as command
from tests.support.wait import wait_until

pytestmark = pytest.mark.long

HANDLER: Final = "tests.e2e.traffic_handlers:Version"
OLD: Final = f"""
backends:
  v1: {{handler: "{HANDLER}", user_config: {{name: v1}}}}
endpoints:
  e: {{traffic: {{v1: 1.0}}}}
"""
NEW: Final = f"""
backends:
  v1: {{handler: "{HANDLER}", user_config: {{name: v1}}}}
  v2: {{handler: "{HANDLER}", user_config: {{name: v2}}}}
endpoints:
  e: {{traffic: {{v2: 1.0}}}}
"""
WORKERS: Final = 4
CALLS: Final = 200


class Callers:
    """Calls with ordering keys, one after another from each caller."""

    def __init__(self, client: slotmesh.Mesh) -> None:
        self._endpoint = client.endpoint("e")
        self._stop = asyncio.Event()
        self.answered = 0
        self.versions: set[str] = set()

    async def call(self, key: str) -> None:
        lane = self._endpoint.ordered(key)
        for number in count():
            if self._stop.is_set():
                return
            self.versions.add(await lane.name(number))
            self.answered += 1

    async def some_more(self, calls: asyncio.Future[list[None]]) -> set[str]:
        """Returns when so many more calls have been answered: by which versions."""
        until = self.answered + CALLS
        self.versions.clear()
        await wait_until(lambda: calls.done() or self.answered >= until, timeout=60.0, what="more calls")
        return set(self.versions)

    def stop(self) -> None:
        self._stop.set()


def copy_state(folder: Path, to: Path) -> None:
    """The file of the state as if the controller had been killed now, without the code beside it."""
    to.mkdir()
    for path in folder.glob("mesh.state*"):
        if path.is_file() and not path.name.endswith((".lock", "-shm")):
            shutil.copy(path, to)


def put_back(folder: Path, copy: Path) -> None:
    for path in folder.glob("mesh.state*"):
        if path.is_file() and not path.name.endswith(".lock"):
            path.unlink()
    for path in copy.iterdir():
        shutil.copy(path, folder)


async def newer_members(mesh: LoneController) -> tuple[str, ...]:
    async with Operator.at(mesh.address) as operator:
        return tuple((await operator.standing()).role.newer_members)


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_no_call_fails_while_an_older_file_is_there_nor_when_an_operator_has_decided(tmp_path: Path) -> None:
    flags = (f"--state={tmp_path / 'mesh.state'}", "--orphan-timeout=5m")
    async with lone_controller(tmp_path, OLD, *flags) as mesh:
        await mesh.ready(1)
        copy_state(tmp_path, tmp_path / "older")
        async with Operator.at(mesh.address) as operator:
            await operator.apply(parse_mesh(NEW))
        await mesh.ready(2)
        async with slotmesh.connect(mesh.router_address) as client:
            callers = Callers(client)
            calls = asyncio.gather(*(callers.call(f"k{worker}") for worker in range(WORKERS)))
            async with asyncio.timeout(60):  # the traffic moves once v2 is rolled out
                while await callers.some_more(calls) != {"v2"}:
                    pass
            before = mesh.replica_processes()
            assert len(before) == 2

            await mesh.kill()
            put_back(tmp_path, tmp_path / "older")
            await mesh.start()
            assert await newer_members(mesh)
            await callers.some_more(calls)
            assert await callers.some_more(calls) == {"v2"}
            assert mesh.replica_processes() == before
            status = await command("status", f"--controller={mesh.address}")
            assert "Nothing is reconciled" in status.out
            check = await command("check", f"--controller={mesh.address}")
            assert check.status == 4
            assert "nothing is reconciled" in check.out

            (tmp_path / "mesh.yaml").write_text(NEW, "utf-8")
            await command("apply", str(tmp_path / "mesh.yaml"), f"--controller={mesh.address}")
            adopted = await command("state", "adopt", "--from-members", f"--controller={mesh.address}")
            assert adopted.status == 0, adopted
            assert mesh.controller is not None
            async with asyncio.timeout(GONE_S):
                await mesh.controller.wait()
            await mesh.start()
            await mesh.ready(2)
            assert not await newer_members(mesh)
            await callers.some_more(calls)
            assert await callers.some_more(calls) == {"v2"}
            assert mesh.replica_processes() == before
            callers.stop()
            await calls


FEWER: Final = OLD.replace("user_config", "num_replicas: 2, user_config")
MORE: Final = OLD.replace("user_config", "num_replicas: 3, user_config")


@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_an_older_file_starts_no_replica_and_ends_none_and_the_newest_one_put_back_goes_on(
    tmp_path: Path,
) -> None:
    flags = (f"--state={tmp_path / 'mesh.state'}", "--orphan-timeout=5m")
    async with lone_controller(tmp_path, MORE, *flags) as mesh:
        await mesh.ready(3)
        copy_state(tmp_path, tmp_path / "older")
        async with Operator.at(mesh.address) as operator:
            await operator.apply(parse_mesh(FEWER))
        await mesh.ready(2)
        await wait_until(lambda: len(mesh.replica_processes()) == 2, timeout=60.0, what="the end of the third")
        async with slotmesh.connect(mesh.router_address) as client:
            callers = Callers(client)
            calls = asyncio.gather(*(callers.call(f"k{worker}") for worker in range(WORKERS)))
            await callers.some_more(calls)
            before = mesh.replica_processes()

            await mesh.kill()
            copy_state(tmp_path, tmp_path / "newest")
            put_back(tmp_path, tmp_path / "older")
            await mesh.start()
            await eventually(lambda: newer_members(mesh), what="the newer members are found", timeout=30.0)
            await callers.some_more(calls)
            assert mesh.replica_processes() == before

            await mesh.kill()
            put_back(tmp_path, tmp_path / "newest")
            await mesh.start()
            await mesh.ready(2)
            assert not await newer_members(mesh)
            await callers.some_more(calls)
            assert mesh.replica_processes() == before
            callers.stop()
            await calls
