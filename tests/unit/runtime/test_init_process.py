"""The first process of a container: orphans, signals, its status, and the terminal of a service below it."""

from __future__ import annotations

import importlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process 1 of a container is one of Linux")

BELOW = """
import ctypes, os, signal, sys, time
prctl = ctypes.CDLL(None).prctl
prctl(36, 1, 0, 0, 0)  # orphans come to this process, as to process 1
from slotmesh.runtime.init_process import serve_below
serve_below()
prctl(1, signal.SIGKILL, 0, 0, 0)  # ends with it, as all processes of a container do
"""
UNTIL_SIGTERM = """
counts = {signal.SIGINT: 0, signal.SIGHUP: 0}
def count(number, _frame):
    counts[number] += 1
    print("counted", flush=True)
for each in counts:
    signal.signal(each, count)
def end(*_):
    print(*counts.values(), flush=True)
    os._exit(5)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""


@contextmanager
def service(program: str) -> Iterator[subprocess.Popen[str]]:
    """A process that serves this below an init of its own, which this process has started."""
    command = [sys.executable, "-c", BELOW + dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(30)", 143),
    ],
)
def test_it_ends_with_the_status_of_the_service(program: str, status: int) -> None:
    with service(program) as process:
        assert process.wait(30) == status


def test_signals_reach_the_service() -> None:
    with service(UNTIL_SIGTERM) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for each in (signal.SIGHUP, signal.SIGINT, signal.SIGHUP):
            process.send_signal(each)
            assert process.stdout.readline() == "counted\n"
        process.terminate()
        assert process.stdout.readline() == "1 2\n"
        assert process.wait(30) == 5


@pytest.mark.asyncio
async def test_orphans_are_reaped_and_children_of_the_service_are_left_to_it() -> None:
    program = """
    own = os.fork()
    if not own:
        if not (orphan := os.fork()):
            os._exit(3)
        print(orphan, flush=True)
        os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]), flush=True)
    signal.pause()
    """
    with service(program) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        assert process.stdout.readline() == "4\n"
        await wait_until(lambda: not Path(f"/proc/{orphan}").exists(), what="the orphan is reaped")


def test_ctrl_c_reaches_the_service_once() -> None:
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [sys.executable, "-c", BELOW + UNTIL_SIGTERM])  # noqa: S606 - there is no shell
    with os.fdopen(terminal, "r+b", buffering=0) as io:
        printed = b""
        while b"ready" not in printed:
            printed += io.read(100)
        io.write(b"\x03")
        while b"counted" not in printed:
            printed += io.read(100)
        os.kill(process, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 5
        assert b"1 0" in io.read(100)


@pytest.mark.parametrize("name", ["controller", "router", "replica", "ingress"])
def test_each_service_begins_with_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.import_module(f"{name}_service.__main__")

    class Began(Exception):
        pass

    def begin() -> None:
        raise Began

    monkeypatch.setattr(entry, "stay_as_init", begin)
    with pytest.raises(Began):
        entry.main()


def test_a_process_with_another_number_stays_what_it_is() -> None:
    program = "import os; from slotmesh.runtime.init_process import stay_as_init as i; p = os.getpid(); i(); print(p)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=30)[0] == f"{process.pid}\n"
