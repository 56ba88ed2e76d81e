"""`slotmesh apply` of files that were applied before: the diff, conflicts, and the question on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from slotmesh.spec.document import parse_mesh
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica
from tests.support.mesh import ROOT
from tests.support.shell import Said, running, slotmesh
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

FILE = """
backends:
  v1: {handler: "app:One", num_replicas: 2}
  v2: {handler: "app:Two"}
endpoints:
  e: {traffic: {v1: 0.9, v2: 0.1}}
"""
SCALED = FILE.replace("num_replicas: 2", "num_replicas: 5, max_queue_time: 250ms")


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Controlled]:
    async with running_controller() as mesh:
        first = await apply(mesh, FILE)
        assert first.status == 0, first.err
        changed = await slotmesh("traffic", "e", "v1=1", "--no-wait", "--force", env=at(mesh))
        assert changed.status == 0, changed.err
        yield mesh


def at(mesh: Controlled) -> dict[str, str]:
    return {"SLOTMESH_ADDRESS": mesh.controller.address}


async def apply(mesh: Controlled, yaml: str, *flags: str) -> Said:
    return await slotmesh("apply", "-", *flags, stdin=yaml, env=at(mesh))


def weights(mesh: Controlled) -> dict[str, float]:
    traffic = mesh.controller.store.read().endpoints["e"].traffic
    assert traffic is not None
    return dict(traffic.weights)


async def test_a_file_that_scales_leaves_the_traffic_alone_and_shows_what_it_changes(mesh: Controlled) -> None:
    before = mesh.controller.store.read()
    planned = await apply(mesh, SCALED, "--dry-run")
    assert planned.err.splitlines() == [
        "~ backend/v1",
        "    num_replicas: 2 -> 5",
        "    max_queue_time: 30s -> 250ms",
    ]
    assert planned.out.splitlines()[0] == "would be updated  backend/v1"
    assert mesh.controller.store.read() is before
    done = await apply(mesh, SCALED)
    assert (done.status, done.err.splitlines()[:3]) == (0, planned.err.splitlines())
    assert mesh.controller.store.read().backends["v1"].num_replicas == 5
    assert weights(mesh) == {"v1": 1.0}


async def test_a_conflict_is_shown_and_waits_for_force(mesh: Controlled) -> None:
    changed = SCALED.replace("{v1: 0.9, v2: 0.1}", "{v1: 0.5, v2: 0.5}")
    refused = await apply(mesh, changed)
    assert (refused.status, refused.out) == (1, "")
    assert "! endpoint/e\n    traffic: {v1: 1} is in force, set by another client\n" in refused.err
    assert "{v1: 0.5, v2: 0.5} is in the file, which had {v1: 0.9, v2: 0.1} when it was applied last" in refused.err
    assert "nothing was applied; --force takes what the file says" in refused.err
    assert (mesh.controller.store.read().backends["v1"].num_replicas, weights(mesh)) == (2, {"v1": 1.0})
    forced = await apply(mesh, changed, "--force")
    assert (forced.status, weights(mesh)) == (0, {"v1": 0.5, "v2": 0.5})


@pytest.mark.long
async def test_a_fresh_file_has_what_is_there_and_changes_nothing(mesh: Controlled) -> None:
    fresh = await slotmesh("get", env=at(mesh))
    assert (fresh.status, fresh.err) == (0, "")
    read = parse_mesh(fresh.out)
    assert {it.name: it for it in read.endpoints} == dict(mesh.controller.store.read().endpoints)
    assert {it.name: it for it in read.backends} == dict(mesh.controller.store.read().backends)
    again = await apply(mesh, fresh.out)
    assert (again.status, [line.split()[0] for line in again.out.splitlines()]) == (0, [*3 * ["unchanged"], "revision"])
    one, names, missing = await asyncio.gather(
        slotmesh("get", "endpoint/e", "-o", "json", env=at(mesh)),
        slotmesh("get", "-o", "name", env=at(mesh)),
        slotmesh("get", "backend/v3", env=at(mesh)),
    )
    assert json.loads(one.out) == {"backends": {}, "endpoints": {"e": {"traffic": {"v1": 1.0}}}}
    assert names.out.split() == ["backend/v1", "backend/v2", "endpoint/e"]
    assert (missing.status, "there is no backend/v3" in missing.err) == (1, True)


async def test_waiting_ends_when_what_was_changed_is_ready_and_says_what_lacks_where_it_is_not() -> None:
    one = FILE.replace('  v2: {handler: "app:Two"}\n', "").replace("{v1: 0.9, v2: 0.1}", "{v1: 1.0}")
    one = one.replace("num_replicas: 2", "num_replicas: 2, max_surge: 2, min_ready: 0s")
    async with running_controller(launches=True) as mesh, AsyncExitStack() as members:
        late = await apply(mesh, one, "--wait", "--timeout=300ms")
        assert (late.status, late.out.splitlines()[0]) == (3, "created   backend/v1")
        assert "applied, but not ready within 300ms:\n  v1: 0 of 2 replicas ready" in late.err

        async def make_ready(count: int, known: int) -> list[FakeReplica]:
            ids = (await mesh.wait_for_launches(known + count))[known:]
            started = [await members.enter_async_context(FakeReplica(mesh.channel, "v1", each)) for each in ids]
            for replica in started:
                await replica.report("READY")
            return started

        old = await make_ready(2, 0)
        ready = await apply(mesh, one, "--wait")
        assert (ready.status, ready.err.splitlines()[-1]) == (0, "slotmesh: ready")

        # What runs there is not what should: it is waited for its successors, and for its end.
        waiting = asyncio.create_task(apply(mesh, one.replace("app:One", "app:Better"), "--wait"))
        new = await make_ready(2, 2)
        for replica in old:
            await wait_until(lambda replica=replica: replica.drains, what="the order to drain")  # type: ignore[misc]
            await replica.report("STOPPED")
        changed = await waiting
        assert changed.status == 0, changed.err

        failing = asyncio.create_task(apply(mesh, one.replace("app:One", "app:Bad"), "--wait", "--timeout=3s"))
        (bad, *_) = (await mesh.wait_for_launches(6))[4:]
        broken = await members.enter_async_context(FakeReplica(mesh.channel, "v1", bad))
        await broken.report("FAILED", error="Traceback\nValueError: no such model")
        told = await failing
        assert told.status == 3
        assert "v1: 0 of 2 new replicas ready; " in told.err
        assert "ValueError: no such model" in told.err
        assert not any(replica.drains for replica in new)


@pytest.mark.long
@pytest.mark.parametrize(("answer", "is_done"), [("y", True), ("n", False)])
async def test_on_a_terminal_it_asks_first(mesh: Controlled, tmp_path: Path, answer: str, is_done: bool) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text(SCALED)
    ours, terminal = pty.openpty()
    try:
        command = sys.executable, "-m", "slotmesh.cli", "apply", str(file), "--no-wait"
        env = {**os.environ, **at(mesh), "NO_COLOR": "1"}
        async with running(*command, stdin=terminal, stdout=PIPE, stderr=terminal, cwd=ROOT, env=env) as process:
            os.write(ours, f"{answer}\n".encode())
            await within(process.communicate(), "the end of the command", timeout=60.0)
    finally:
        os.close(terminal)
        shown = os.read(ours, 1 << 16).decode()
        os.close(ours)
    assert "num_replicas: 2 -> 5" in shown
    assert "apply this? [y/N]" in shown
    assert process.returncode == (0 if is_done else 1)
    assert (mesh.controller.store.read().backends["v1"].num_replicas == 5) is is_done
