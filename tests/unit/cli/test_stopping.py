"""How a local mesh is taken down, with small processes in place of its services."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from slotmesh.cli.local import stopping
from slotmesh.cli.local.child import Child
from slotmesh.cli.local.stopping import MeshProcesses, Shutdown, waiting_for
from slotmesh.runtime.parent import ParentPipe
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.wait import wait_until

PROGRAM = """
import pathlib, signal, sys, threading, time
own, awaited = sys.argv[1:3]
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
pathlib.Path(own).touch()
while not asked.wait(0.05):
    pass
pathlib.Path(own + ".asked").touch()
while awaited and not pathlib.Path(awaited).exists():
    time.sleep(0.01)
pathlib.Path(own + ".done").touch()
"""
"""Ends when it was asked to and a file is there: its calls have ended then."""

pytestmark = pytest.mark.asyncio


class Folder:
    """The files of the processes, and the processes."""

    def __init__(self, path: Path, parent: ParentPipe) -> None:
        self.path = path
        self._parent = parent
        self.said: list[str] = []

    async def start(self, name: str, awaited: str = "") -> Child:
        module = self.path / "program.py"
        module.write_text(PROGRAM)
        arguments = [str(self.path / name), str(self.path / awaited) if awaited else ""]
        child = await Child.start(name, "program", arguments, self._parent)
        await wait_until((self.path / name).exists, timeout=30)
        return child

    def has(self, name: str) -> bool:
        return (self.path / name).exists()


@pytest_asyncio.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Folder]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # children import nothing from the working directory
    with ParentPipe() as parent:
        yield Folder(tmp_path, parent)


async def test_ingress_and_routers_leave_side_by_side(folder: Folder) -> None:
    """A call at the ingress may last as long as one at a router: the ingress does not use up the time of both."""
    ingress = await folder.start("ingress", awaited="router-2.asked")
    routers = [await folder.start("router-1", awaited="ingress.asked"), await folder.start("router-2")]
    controller = await folder.start("controller", awaited="router-1.done")
    assert await Shutdown(MeshProcesses(ingress, routers, controller), 30.0, folder.said.append).run()
    assert all(folder.has(f"{name}.done") for name in ("ingress", "router-1", "router-2", "controller"))
    assert not any("killing" in line for line in folder.said)


async def test_the_controller_leaves_behind_the_routers(folder: Folder) -> None:
    """It ends the replicas, in which calls of the routers run."""
    router = await folder.start("router-1", awaited="calls have ended")
    controller = await folder.start("controller")
    ending = asyncio.ensure_future(Shutdown(MeshProcesses(None, [router], controller), 60.0, folder.said.append).run())
    await wait_until(lambda: folder.has("router-1.asked") and bool(folder.said), timeout=30)
    assert not folder.has("controller.asked")
    assert "waiting for router-1, controller to end, at most" in folder.said[0]
    (folder.path / "calls have ended").touch()
    async with asyncio.timeout(30):
        assert await ending
    assert folder.has("controller.done")


async def test_what_does_not_end_within_the_grace_is_killed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "SLACK_S", 0.2)
    router = await folder.start("router-1", awaited="never")
    controller = await folder.start("controller", awaited="never")
    async with asyncio.timeout(30):
        await Shutdown(MeshProcesses(None, [router], controller), 0.2, folder.said.append).run()
    assert folder.has("controller.asked")
    assert not folder.has("router-1.done")
    assert not folder.has("controller.done")
    assert folder.said[-2:] == ["controller has not ended; killing it", "router-1 has not ended; killing it"]


async def test_a_second_interrupt_kills(folder: Folder) -> None:
    router = await folder.start("router-1", awaited="never")
    ending = asyncio.ensure_future(Shutdown(MeshProcesses(None, [router], None), 3_600.0, folder.said.append).run())
    await wait_until(lambda: bool(folder.said), timeout=30)
    assert re.fullmatch(r"waiting for router-1 to end, at most 35\d\d s more; Ctrl-C again kills .*", folder.said[0])
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(30):
        assert not await ending
    assert router.has_ended


async def test_an_interrupt_that_comes_twice_is_one(folder: Folder) -> None:
    router = await folder.start("router-1", awaited="calls have ended")
    ending = asyncio.ensure_future(Shutdown(MeshProcesses(None, [router], None), 60.0, folder.said.append).run())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    await wait_until(lambda: bool(folder.said), timeout=30)
    (folder.path / "calls have ended").touch()
    async with asyncio.timeout(30):
        assert await ending
    assert folder.has("router-1.done")


def sampled(name: str, ongoing: int) -> pb.SampledReplica:
    load = mesh_pb2.ReplicaLoad(ongoing=ongoing)
    return pb.SampledReplica(replica=mesh_pb2.Replica(replica_id=name, backend="digits", load=load))


async def test_the_report_names_what_runs() -> None:
    replicas = [sampled("digits-a", 2), sampled("digits-b", 0), sampled("digits-c", 1)]
    sample = pb.GetSnapshotResponse(replicas=replicas)
    end = "; Ctrl-C again kills all of it now"
    children = ["router-1", "controller"]
    assert (
        waiting_for(children, sample, 8.6)
        == f"waiting for 3 calls that run in digits-a, digits-c, at most 9 s more{end}"
    )
    one = pb.GetSnapshotResponse(replicas=replicas[1:])
    assert waiting_for(children, one, 0.4) == f"waiting for 1 call that runs in digits-c{end}"
    assert waiting_for(children, None, 0.0) == f"waiting for router-1, controller to end{end}"
