"""Leaving a mesh without asyncio: nothing hangs, no future stays pending; Ctrl-C, forks, the end of a program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import MSGPACK, decode
from slotmesh.errors import Executed
from tests.contract.client.sync import sync_programs
from tests.support.fakes.router import FakeRouter
from tests.support.fakes.router_batches import Batch
from tests.support.mesh import ROOT
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio

WITHIN_S = 20.0


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(window_calls=4) as router:
        yield router
    assert not router.breaches


def taken_back(router: FakeRouter) -> list[int]:
    return sorted(call_id for frame in router.cancels for each in frame for call_id in each)


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "slotmesh-client"]


def refuses(lane: slotmesh.SyncLane) -> bool:
    try:
        lane.reset()
    except RuntimeError:
        return True
    return False


async def close(mesh: slotmesh.SyncMesh, grace: float | None = None) -> None:
    async with asyncio.timeout(WITHIN_S):
        await asyncio.to_thread(mesh.close, grace)


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_a_mesh_that_was_never_used_closes_and_never_had_a_thread(router: FakeRouter) -> None:
    with slotmesh.connect_sync(router.address) as mesh:
        assert not client_threads()
    with pytest.raises(RuntimeError, match="the mesh is closed"):
        mesh.endpoint("digits")
    assert router.opened == 0


async def test_leaving_waits_for_unanswered_calls_and_for_those_not_sent(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect_sync(router.address)
    echo = mesh.endpoint("digits").echo
    futures = [echo.future(number) for number in range(10)]
    await router.until(lambda: router.calls() == 4)
    closing = asyncio.create_task(close(mesh))
    router.release()
    await closing
    assert [future.result(0) for future in futures] == [[number] for number in range(10)]
    assert not client_threads()
    await router.until(lambda: not router.streams)
    assert router.half_closed == 1


async def test_calls_made_just_before_leaving_are_made(router: FakeRouter) -> None:
    def program() -> list[Future[Any]]:
        with slotmesh.connect_sync(router.address) as mesh:
            return [mesh.endpoint("digits").echo.future(number) for number in range(10)]

    futures = await asyncio.to_thread(program)
    assert [future.result(0) for future in futures] == [[number] for number in range(10)]


async def test_after_the_grace_the_rest_fails_with_the_truth(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect_sync(router.address, close_grace=0.05)
    echo = mesh.endpoint("digits").echo
    futures = [echo.future(number) for number in range(6)]
    together = asyncio.create_task(asyncio.to_thread(echo.map, [1, 2]))
    await router.until(lambda: router.calls() == 4)
    await close(mesh)
    for number, future in enumerate(futures):
        error = future.exception(0)
        assert isinstance(error, slotmesh.CallCancelled)
        assert error.executed is (Executed.UNKNOWN if number < 4 else Executed.NO)
        assert "the mesh was closed" in str(error)
    with pytest.raises((slotmesh.CallCancelled, RuntimeError), match=r"the mesh (was|is) closed"):
        await together


async def test_leaving_by_an_exception_waits_for_nothing(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect_sync(router.address)
    future = mesh.endpoint("digits").echo.future(1)
    await router.until(lambda: router.calls() == 1)

    def leave() -> None:
        with mesh:
            raise KeyError

    with pytest.raises(KeyError):
        await asyncio.to_thread(leave)
    assert isinstance(future.exception(0), slotmesh.CallCancelled)


async def test_a_closed_mesh_makes_no_calls_and_closes_again(router: FakeRouter) -> None:
    mesh = slotmesh.connect_sync(router.address)
    digits = mesh.endpoint("digits")
    lane = digits.ordered("key")
    assert await asyncio.to_thread(digits.echo, 1) == [1]
    await close(mesh)
    await close(mesh)
    for use in (digits.echo, digits.echo.future, digits.echo.unary, digits.echo.stream, mesh.endpoint):
        with pytest.raises(RuntimeError, match="the mesh is closed"):
            use("x")
    for call in (lambda: digits.echo.map([1]), lane.reset):
        with pytest.raises(RuntimeError, match="the mesh is closed"):
            call()
    with lane:
        pass


async def test_less_grace_cuts_short_who_waits_already(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect_sync(router.address, close_grace=3_600)
    lane = mesh.endpoint("digits").ordered("key")
    future = lane.echo.future(1)
    await router.until(lambda: router.calls() == 1)
    patient = asyncio.create_task(asyncio.to_thread(mesh.close))
    await wait_until(lambda: refuses(lane))
    assert not future.done()
    await close(mesh, 0)
    async with asyncio.timeout(WITHIN_S):
        await patient
    assert isinstance(future.exception(0), slotmesh.CallCancelled)


class MuteRouter(FakeRouter):
    """Does not answer unary calls."""

    unary_calls = 0

    async def Call(self, request: Any, context: Any) -> Any:
        self.unary_calls += 1
        await asyncio.shield(self._tell())
        await asyncio.Event().wait()


async def test_a_unary_call_fails_with_the_mesh_as_others_do() -> None:
    router = MuteRouter()
    async with router:
        mesh = slotmesh.connect_sync(router.address)
        echo = (await asyncio.to_thread(mesh.endpoint, "digits")).echo
        waiting = asyncio.create_task(asyncio.to_thread(echo.unary, 1))
        await router.until(lambda: router.unary_calls == 1)
        await close(mesh, 0)
        with pytest.raises(slotmesh.CallCancelled, match="the mesh was closed") as caught:
            await waiting
    error = caught.value
    assert (error.endpoint, error.method, error.executed) == ("digits", "echo", Executed.UNKNOWN)


async def test_lanes_that_wait_end_with_the_mesh(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect_sync(router.address)
    digits = mesh.endpoint("digits")
    lane = digits.ordered("key")
    future = lane.echo.future(1)
    leaving = asyncio.create_task(asyncio.to_thread(lane.__exit__, None, None, None))
    await router.until(lambda: router.calls() == 1)
    await close(mesh, 0)
    async with asyncio.timeout(WITHIN_S):
        await leaving
    assert isinstance(future.exception(0), slotmesh.CallCancelled)


async def test_whoever_makes_calls_while_it_closes_hears_of_each(router: FakeRouter) -> None:
    router.window_calls = 1_000
    for _ in range(20):
        mesh = slotmesh.connect_sync(router.address)
        echo = mesh.endpoint("digits").echo
        every: list[list[Future[Any]]] = [[], [], []]

        def hurry(made: list[Future[Any]], echo: slotmesh.SyncMethod[Any] = echo) -> None:
            with suppress(RuntimeError):
                while True:
                    made.extend(echo.future(1) for _ in range(20))
                    made[-1].exception(WITHIN_S)

        hurrying = [asyncio.create_task(asyncio.to_thread(hurry, made)) for made in every]
        await router.until(lambda: router.calls() > 0)
        await close(mesh, 0)
        await asyncio.gather(*hurrying)
        assert all(future.done() for made in every for future in made)
        outcomes = {type(future.exception(0)) for made in every for future in made}
        assert outcomes <= {type(None), slotmesh.CallCancelled, RuntimeError}
        router.batches.clear()


# -- processes of their own --------------------------------------------------------------------------------------------


@asynccontextmanager
async def program(name: str, router: FakeRouter) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of `sync_programs`. It has to end by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        sync_programs.__name__,
        name,
        router.address,
        cwd=ROOT,
        # Its handlers crash now and then in children of processes with other threads in it.
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            yield process
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await within(process.wait(), "the end of the process", timeout=60.0)


async def said(process: asyncio.subprocess.Process) -> list[str]:
    """All that it says until its end, which is a good one."""
    out, err = await within(process.communicate(), "the end of the process", timeout=60.0)
    assert process.returncode == 0, err.decode()
    assert b"Traceback" not in err, err.decode()
    return out.decode().splitlines()


class HoldingRouter(FakeRouter):
    """Answers everything but what says that it is never answered."""

    def accept(self, stream: Any, batch: Batch) -> None:
        self.held = "never answered" in decode(MSGPACK, batch.payloads[0])
        super().accept(stream, batch)


@pytest_asyncio.fixture
async def holding() -> AsyncIterator[HoldingRouter]:
    router = HoldingRouter()
    async with router:
        yield router
    assert not router.breaches


async def test_ctrl_c_ends_a_wait_and_leaves_everything_usable(router: FakeRouter) -> None:
    router.held = True
    async with program("interrupted", router) as process:
        assert process.stdout is not None
        for calls in range(2, 5):  # one is made before all: its future is waited for at the end
            await router.until(lambda calls=calls: router.calls() == calls)  # type: ignore[misc]
            process.send_signal(signal.SIGINT)
            assert await process.stdout.readline() == b"interrupted\n"
        assert await process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        assert await process.stdout.readline() == b"interrupted\n"
        await router.until(lambda: router.calls() == 5 and taken_back(router) == [2, 3, 4])
        router.release()
        assert await said(process) == ["['afterwards', 'future']"]


async def test_ctrl_c_ends_a_wait_that_it_does_not_wake(router: FakeRouter) -> None:
    router.held = True
    async with program("interrupted_through_another_thread", router) as process:
        await router.until(lambda: router.calls() == 1)
        process.send_signal(signal.SIGUSR1)
        assert await said(process) == ["interrupted"]


async def test_ctrl_c_while_it_closes(router: FakeRouter) -> None:
    router.held = True
    async with program("interrupted_at_the_end", router) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"leaving\n"
        await router.until(lambda: router.calls() == 1)
        process.send_signal(signal.SIGINT)
        assert await said(process) == ["CallCancelled"]


async def test_a_program_that_ends_without_close_ends(holding: HoldingRouter) -> None:
    async with program("ends_without_close", holding) as process:
        assert await said(process) == ["['answered']"]
    await holding.until(lambda: not holding.streams and taken_back(holding) == [2, 3])


async def test_and_its_status_is_its_own(holding: HoldingRouter) -> None:
    async with program("fails_without_close", holding) as process:
        await within(process.communicate(), "the end of the process", timeout=60.0)
    assert process.returncode == 3


async def test_a_child_hears_that_its_parents_mesh_is_not_its_own(holding: HoldingRouter) -> None:
    async with program("forks", holding) as process:
        assert await said(process) == ["['parent']", "11 of 11", "child 0", "['parent again']"]


async def test_a_mesh_that_nobody_has_used_is_as_good_in_a_child(router: FakeRouter) -> None:
    async with program("forks_first", router) as process:
        assert sorted(await said(process)) == ["['child']", "['parent']", "child 0"]
