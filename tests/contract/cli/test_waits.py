"""What `--wait` waits for and returns: of files that were applied before, and where the controller goes away."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest

from slotmesh.cli.console import NOT_IN_TIME, CommandFailed
from slotmesh.cli.operator import Operator
from slotmesh.cli.shifting import follow_shift
from slotmesh.cli.waiting import after_change
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from tests.contract.cli.test_lost_replies import shift_of
from tests.contract.controller.test_launching import make_ready
from tests.contract.controller.test_rollouts import is_in
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.mesh import ROOT
from tests.support.shell import Said, running, slotmesh
from tests.support.tcp_proxy import tcp_proxy
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1:
    handler: "%s"
    version: "1"
    user_config: {labels: [a, b], limit: {most: 3}}
    num_replicas: 2
    graceful_timeout: 0s
    min_ready: 0s
"""
TRAFFIC = """
backends:
  v1: {handler: "app:One", num_replicas: 1}
  v2: {handler: "app:Two", num_replicas: 1}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


def at(address: str) -> dict[str, str]:
    return {"SLOTMESH_ADDRESS": address}


async def apply_and_wait(mesh: Controlled, handler: str, *flags: str) -> Said:
    env = at(mesh.controller.address)
    return await slotmesh("apply", "-", "--wait", "--timeout=20s", *flags, stdin=MESH % handler, env=env)


async def apply_file(mesh: Controlled, handler: str) -> None:
    async with Operator.at(mesh.controller.address) as operator:
        await operator.apply_file(parse_mesh(MESH % handler))


async def taken_back(mesh: Controlled, stack: AsyncExitStack) -> None:
    """The file with app:Old runs; the one with app:Raises was applied, and rolled back."""
    assert mesh.launcher is not None
    await apply_file(mesh, "app:Old")
    await make_ready(mesh, stack, *await mesh.wait_for_launches(2))
    await eventually(lambda: is_in(mesh, "COMPLETE"), what="the first replicas")
    await apply_file(mesh, "app:Raises")
    for number in range(3, 6):
        mesh.launcher.exit((await mesh.wait_for_launches(number))[-1], "exited with status 1")
    await eventually(lambda: is_in(mesh, "COMPLETE"), what="rolled back")


async def test_a_file_whose_rollout_was_taken_back_is_not_ready_however_often_it_is_applied() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await taken_back(mesh, stack)
        for _ in range(2):
            said = await apply_and_wait(mesh, "app:Raises")
            assert (said.status, said.out.splitlines()[0]) == (3, "unchanged backend/v1")
            assert "applied before, and rolled back:\n  v1: 3 replicas have died one after another" in said.err
            assert (
                "its handler is not what the file says. Once the cause is gone, `slotmesh apply - --force`" in said.err
            )
        said = await apply_and_wait(mesh, "app:Old")
        assert (said.status, said.err.splitlines()[-1]) == (0, "slotmesh: ready"), "what the file says is what runs"
        scaled = await slotmesh("scale", "v1", "2", "--wait", "--timeout=20s", env=at(mesh.controller.address))
        assert scaled.status == 0, "that was rolled back before"


@pytest.mark.parametrize("is_same_file", [False, True], ids=["the next file", "the same file, by force"])
async def test_what_was_taken_back_of_a_file_is_tried_again_as_a_whole(*, is_same_file: bool) -> None:
    file = MESH % "app:Raises"
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await taken_back(mesh, stack)
        env = at(mesh.controller.address)
        planned = await slotmesh("apply", "-", "--dry-run", stdin=file, env=env)
        assert (planned.status, "nothing was changed" in planned.out) == (0, True)
        assert "rolled back before: v1: 3 replicas have died one after another" in planned.err
        assert "`slotmesh apply - --force` tries it again" in planned.err
        flags = ["--force"] if is_same_file else []
        file = file if is_same_file else file.replace('version: "1"', 'version: "again"')
        said = await slotmesh("apply", "-", "--yes", *flags, stdin=file, env=env)
        assert (said.status, "handler: app:Old -> app:Raises" in said.err, "rolled back" in said.err) == (
            0,
            True,
            False,
        )
        assert "handler: app:Raises" in (await slotmesh("get", "backend/v1", env=env)).out
        await mesh.wait_for_launches(6)


async def test_a_backend_that_fails_is_not_ready_because_its_file_is_applied_again() -> None:
    async with running_controller(launches=True) as mesh:
        assert mesh.launcher is not None
        await apply_file(mesh, "app:Raises")
        for number in (2, 4, 6):
            for replica_id in (await mesh.wait_for_launches(number))[-2:]:
                mesh.launcher.exit(replica_id, "exited with status 1")
        await eventually(lambda: is_in(mesh, "FAILING"), what="it fails")
        said = await apply_and_wait(mesh, "app:Raises")
        assert (said.status, said.out.splitlines()[0]) == (3, "unchanged backend/v1")
        assert "applied before, but failed:\n  v1: fails, and there is nothing to go back to: " in said.err
        assert "exited with status 1" in said.err
        assert "; what it wrote: `slotmesh logs v1`" in said.err


@asynccontextmanager
async def command(address: str, *arguments: str, stdin: str = "") -> AsyncIterator[Process]:
    full = sys.executable, "-m", "slotmesh.cli", *arguments
    env = {**os.environ, **at(address), "NO_COLOR": "1"}
    async with running(*full, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT, env=env) as process:
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
        yield process


async def waits(process: Process) -> None:
    """Returns when the command says what is lacking yet."""
    assert process.stderr is not None
    async with asyncio.timeout(30.0):
        while b"replicas ready" not in (line := await process.stderr.readline()):
            assert line, "it has ended"


async def test_apply_goes_on_waiting_at_the_controller_that_leads_when_the_connection_broke() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        target = mesh.controller.address
        async with tcp_proxy(target) as first, tcp_proxy(target) as second:
            both = f"{first.address},{second.address}"
            async with command(both, "apply", "-", "--wait", "--timeout=60s", stdin=MESH % "app:One") as process:
                await waits(process)
                first.cut()
                await make_ready(mesh, stack, *await mesh.wait_for_launches(2))
                out, err = await within(process.communicate(), "the end of the command", timeout=60.0)
                assert (process.returncode, err.decode().splitlines()[-1]) == (0, "slotmesh: ready")
                assert b"created   backend/v1" in out


async def test_apply_goes_on_waiting_when_its_controller_has_ended_the_wait_as_it_leads_no_more() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        operations = mesh.controller.operations
        address = mesh.controller.address
        async with command(address, "apply", "-", "--wait", "--timeout=60s", stdin=MESH % "app:One") as process:
            await waits(process)
            await wait_until(lambda: operations.waiting, what="that it waits")
            operations.close()
            await wait_until(lambda: not operations.waiting, what="the end of the rpc")
            operations._is_closed = False  # the next controller
            await make_ready(mesh, stack, *await mesh.wait_for_launches(2))
            _, err = await within(process.communicate(), "the end of the command", timeout=60.0)
            assert (process.returncode, err.decode().splitlines()[-1]) == (0, "slotmesh: ready")


@pytest.mark.parametrize("arguments", [("apply", "-"), ("scale", "v1", "4")])
async def test_where_no_controller_comes_back_the_change_was_made_all_the_same(arguments: tuple[str, ...]) -> None:
    async with running_controller(launches=True) as mesh, tcp_proxy(mesh.controller.address) as proxy:
        await apply_file(mesh, "app:One")
        async with command(proxy.address, *arguments, "--wait", "--timeout=2s", stdin=MESH % "app:Two") as process:
            await waits(process)
            proxy.cut()
            _, err = await within(process.communicate(), "the end of the command", timeout=60.0)
        revision = mesh.controller.store.read().configured_at
        verb = {"apply": "applied", "scale": "scaled"}[arguments[0]]
        assert process.returncode == 3
        assert f"{verb}, revision {revision}, but how it goes on is not known:\n  " in err.decode()
        assert "see `slotmesh status`" in err.decode()


async def test_a_shift_is_followed_at_the_controller_that_leads_when_the_connection_broke() -> None:
    async with running_controller() as mesh:
        await mesh.apply(TRAFFIC)
        target = mesh.controller.address
        async with tcp_proxy(target) as first, tcp_proxy(target) as second:
            async with Operator.at(f"{first.address},{second.address}") as operator:
                await operator.send(shift_of("e"))
                first.cut()
                with after_change(operator, "stored", "slotmesh traffic e", None):
                    following = asyncio.create_task(follow_shift(operator, "e", None))
                    await wait_until(lambda: second.is_used, timeout=30.0, what="the other connection")
                    await mesh.operator.Rollback(pb.RollbackRequest(endpoint="e"))
                    with pytest.raises(CommandFailed, match="e: stopped") as ended:
                        await following
                assert ended.value.exit_code == NOT_IN_TIME


async def test_a_shift_that_cannot_be_followed_was_stored_and_a_question_before_a_change_fails_as_ever() -> None:
    async with running_controller() as mesh, tcp_proxy(mesh.controller.address) as proxy:
        await mesh.apply(TRAFFIC)
        async with Operator.at(proxy.address) as operator:
            revision = (await operator.send(shift_of("e"))).revision
            proxy.cut()
            done = f"e: stored as revision {revision}"
            with pytest.raises(CommandFailed, match=f"{done}, but how it goes on is not known") as ended:
                with after_change(operator, done, "slotmesh traffic e", timedelta(milliseconds=300)):
                    await follow_shift(operator, "e", None)
            assert ended.value.exit_code == NOT_IN_TIME
            with pytest.raises(CommandFailed, match=r"broke|answers") as failed:
                await operator.members()
            assert failed.value.exit_code == 1
