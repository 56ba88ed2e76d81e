"""What a process and its launcher agree on: signals, exit statuses, the pipes between them. With real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from slotmesh.runtime.main import run
from slotmesh.runtime.parent import ORPHANED_EXIT_CODE, AnnouncePipe, ParentPipe, announce, watch_parent
from slotmesh.runtime.signals import stop_signals
from tests.support.shell import running
from tests.support.wait import wait_until

PROGRAM = """
import asyncio, sys
from slotmesh.config import SettingsError
from slotmesh.runtime.parent import announce
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.main import run
from slotmesh.runtime.parent import watch_parent
from slotmesh.runtime.signals import stop_signals
from slotmesh.runtime.tasks import Supervisor
{body}
"""

WAITING = """
async def main():
    with stop_signals(ignore_interrupt={ignore_interrupt}) as stop:
        print("ready", flush=True)
        await stop.wait()
        print("stopped", flush=True)
run(main, log_format="json")
"""

CHILD = """
async def main():
    with stop_signals() as stop:
        watch_parent(int(sys.argv[1]), stop.set, grace_s={grace_s})
        print("ready", flush=True)
        {work}
        print("stopped", flush=True)
run(main)
"""


@asynccontextmanager
async def program(
    body: str, *arguments: str, pass_fds: tuple[int, ...] = ()
) -> AsyncIterator[asyncio.subprocess.Process]:
    command = sys.executable, "-c", PROGRAM.format(body=body), *arguments
    async with running(*command, stdout=PIPE, stderr=PIPE, pass_fds=pass_fds) as process:
        yield process


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def outcome(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(20):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


# -- exit status -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("async def main(): return None", 0, ""),
        ("async def main(): return 7", 7, ""),
        ("async def main(): raise CannotStart('no room here')", 1, "no room here\n"),
        ("async def main(): raise SettingsError('--a: bad', '--b: bad')", 2, "--a: bad\n--b: bad\n"),
        ("async def main(): raise KeyboardInterrupt", 130, ""),
    ],
)
async def test_the_exit_status_says_how_it_ended(body: str, status: int, told: str) -> None:
    async with program(body + "\nrun(main)") as process:
        assert await outcome(process) == (status, "", told)


@pytest.mark.asyncio
async def test_a_crash_is_logged_with_its_traceback() -> None:
    async with program("async def main(): raise ValueError('broken')\nrun(main)") as process:
        status, _, err = await outcome(process)
    assert status == 1
    assert err.count("ValueError: broken") == 1
    assert "Traceback" in err


@pytest.mark.asyncio
async def test_a_failed_task_is_logged_once() -> None:
    body = """
async def broken(): raise ValueError('broken')
async def main():
    stop = asyncio.Event()
    async with Supervisor(on_failure=stop.set) as tasks:
        tasks.start(broken(), name="link")
        await stop.wait()
run(main)
"""
    async with program(body) as process:
        status, _, err = await outcome(process)
    assert status == 1
    assert err.count("ValueError: broken") == 1


def test_it_runs_on_uvloop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loops: list[str] = []

    async def main() -> None:
        loops.append(type(asyncio.get_running_loop()).__module__)

    # Logs of the test process stay as they are.
    monkeypatch.setattr("slotmesh.runtime.main.setup_logging", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 0
    assert loops == ["uvloop"]


# -- signals -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_asks_for_an_orderly_end(number: signal.Signals) -> None:
    async with program(WAITING.format(ignore_interrupt=False)) as process:
        assert await line(process) == "ready"
        process.send_signal(number)
        status, out, err = await outcome(process)
    assert (status, out) == (0, "stopped\n")
    assert f'"signal": "{number.name}"' in err


@pytest.mark.asyncio
async def test_an_interrupt_can_be_left_to_the_launcher() -> None:
    async with program(WAITING.format(ignore_interrupt=True)) as process:
        assert await line(process) == "ready"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        status, out, err = await outcome(process)
    assert (status, out) == (0, "stopped\n")
    assert "SIGINT" not in err


@pytest.mark.asyncio
async def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_signals(ignore_interrupt=True) as stop:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20.0):
            await stop.wait()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# -- the launcher is gone ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_children_stop_when_the_launcher_closes_or_dies() -> None:
    body = CHILD.format(grace_s=60, work="await stop.wait()")
    with ParentPipe() as pipe:
        async with program(body, str(pipe.fd), pass_fds=pipe.pass_fds) as first:
            async with program(body, str(pipe.fd), pass_fds=pipe.pass_fds) as second:
                assert (await line(first), await line(second)) == ("ready", "ready")
                pipe.close()
                for each in (first, second):
                    status, out, _ = await outcome(each)
                    assert (status, out) == (0, "stopped\n")


@pytest.mark.asyncio
async def test_a_child_that_cannot_stop_is_ended() -> None:
    blocked = "__import__('time').sleep(3600)"  # a handler that blocks the loop
    with ParentPipe() as pipe:
        async with program(CHILD.format(grace_s=0.05, work=blocked), str(pipe.fd), pass_fds=pipe.pass_fds) as child:
            assert await line(child) == "ready"
            pipe.close()
            status, out, _ = await outcome(child)
    assert (status, out) == (ORPHANED_EXIT_CODE, "")


@pytest.mark.asyncio
async def test_a_child_survives_nothing_of_a_launcher_that_was_killed() -> None:
    child = PROGRAM.format(body=CHILD.format(grace_s=60, work="await stop.wait()"))
    launcher = f"""
import subprocess, time
from slotmesh.runtime.parent import ParentPipe
pipe = ParentPipe()
child = subprocess.Popen([sys.executable, "-c", {child!r}, str(pipe.fd)], pass_fds=pipe.pass_fds)
print(child.pid, flush=True)
time.sleep(3600)
"""
    async with program(launcher) as process:
        pid = await line(process)
        assert pid.isdecimal()
        assert await line(process) == "ready"
        process.kill()
        # The child inherited stdout: its end is the end of the file.
        status, out, _ = await outcome(process)
    assert (status, out) == (-signal.SIGKILL, "stopped\n")


@pytest.mark.asyncio
async def test_the_watcher_asks_then_ends() -> None:
    asked, ended = asyncio.Event(), threading.Event()
    statuses: list[int] = []

    def hard_exit(status: int) -> None:
        statuses.append(status)
        ended.set()

    pipe = ParentPipe()
    fd = os.dup(pipe.fd)
    watcher = watch_parent(fd, asked.set, grace_s=0.0, hard_exit=hard_exit)
    assert watcher.daemon
    assert not asked.is_set()
    pipe.close()
    async with asyncio.timeout(20.0):
        await asked.wait()
    await wait_until(ended.is_set, what="the hard exit")
    watcher.join(5)
    os.close(fd)
    assert statuses == [ORPHANED_EXIT_CODE]


# -- announcing a port -------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_child_announces_its_address() -> None:
    with AnnouncePipe() as pipe:
        body = "announce(int(sys.argv[1]), '127.0.0.1:7071')"
        async with program(body, str(pipe.fd), pass_fds=pipe.pass_fds) as process:
            async with asyncio.timeout(20):
                assert await pipe.address() == "127.0.0.1:7071"
            assert (await outcome(process))[0] == 0


@pytest.mark.asyncio
async def test_a_child_that_ends_without_a_word_is_noticed() -> None:
    with AnnouncePipe() as pipe:
        async with program("sys.exit(1)", pass_fds=pipe.pass_fds):
            async with asyncio.timeout(20):
                assert await pipe.address() is None


@pytest.mark.asyncio
async def test_a_line_in_pieces_is_one_line() -> None:
    with AnnouncePipe() as pipe:
        fd = os.dup(pipe.fd)
        reading = asyncio.create_task(pipe.address())
        for piece in (b"127.0.0.1", b":70", b"71\n"):
            os.write(fd, piece)
            await asyncio.sleep(0)
        os.close(fd)
        async with asyncio.timeout(20.0):
            assert await reading == "127.0.0.1:7071"


def test_nobody_listening_is_no_error() -> None:
    pipe = AnnouncePipe()
    fd = os.dup(pipe.fd)
    pipe.close()
    announce(fd, "127.0.0.1:7071")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("make", [ParentPipe, AnnouncePipe])
def test_pipes_give_their_descriptors_back(make: Callable[[], ParentPipe | AnnouncePipe]) -> None:
    pipe = make()
    fd = pipe.fd
    assert not os.get_inheritable(fd)
    pipe.close()
    pipe.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
