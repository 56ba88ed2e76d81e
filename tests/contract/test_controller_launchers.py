"""What every launcher does: the fake one and the one that starts processes are held to the same."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller_service.shell.launchers.external import ExternalLauncher
from controller_service.shell.launchers.process import ProcessLauncher, replica_command
from controller_service.shell.launchers.protocol import Exit, Launcher, LaunchFailed, LaunchOrder
from tests.support.fakes.launcher import FakeLauncher
from tests.support.wait import wait_until

OBEDIENT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


@dataclass
class Bench:
    """A launcher under test, and what only the test knows about its kind."""

    launcher: Launcher
    exits: list[Exit]
    kill: Callable[[str, int], None]
    """Ends a replica from outside: its id and process id."""
    await_ready: Callable[[int], Any]
    """Waits until a replica reacts to signals as its handler says."""
    make_stubborn: Callable[[str], None]
    pids: dict[str, int] = field(default_factory=dict)

    async def start(self, replica_id: str, *, handler: str = "obedient:Handler") -> int:
        if handler.startswith("stubborn"):
            self.make_stubborn(replica_id)
        order = LaunchOrder(replica_id=replica_id, backend="v1", handler=handler)
        pid = await self.launcher.start(order)
        self.pids[replica_id] = pid
        await self.await_ready(pid)
        return pid

    async def exit_of(self, replica_id: str) -> Exit:
        await wait_until(lambda: any(it.replica_id == replica_id for it in self.exits), what=f"exit of {replica_id}")
        (found,) = [it for it in self.exits if it.replica_id == replica_id]
        return found


def _catches_sigterm(pid: int) -> bool:
    """Whether the process handles or ignores SIGTERM by now."""
    status = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in status if line.startswith(("SigCgt", "SigIgn"))}
    return bool((masks["SigCgt"] | masks["SigIgn"]) >> (signal.SIGTERM - 1) & 1)


@pytest_asyncio.fixture(params=["fake", "process"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    exits: list[Exit] = []
    if request.param == "fake":
        fake = FakeLauncher(exits.append)

        async def at_once(_pid: int) -> None:
            """A fake needs no time."""

        bench = Bench(fake, exits, lambda replica_id, _: fake.exit(replica_id), at_once, fake.stubborn.add)
    else:

        def command(order: LaunchOrder, _fd: int) -> list[str]:
            return [sys.executable, "-S", "-c", STUBBORN if order.handler.startswith("stubborn") else OBEDIENT]

        async def ready(pid: int) -> None:
            await wait_until(lambda: _catches_sigterm(pid), what="signal handlers")

        bench = Bench(
            ProcessLauncher(command, exits.append, close_grace_s=0.1),
            exits,
            lambda _, pid: os.kill(pid, signal.SIGKILL),
            ready,
            lambda _: None,
        )
    yield bench
    async with asyncio.timeout(10.0):
        await bench.launcher.close()


@pytest.mark.asyncio
async def test_a_replica_that_is_asked_ends_well(bench: Bench) -> None:
    assert bench.launcher.launches
    pid = await bench.start("a")
    assert pid > 0
    bench.launcher.stop("a", grace_s=30.0)
    bench.launcher.stop("a", grace_s=30.0)
    assert await bench.exit_of("a") == Exit(replica_id="a", how="exited with status 0", failed=False)


@pytest.mark.asyncio
async def test_a_replica_that_does_not_end_is_killed_after_the_grace(bench: Bench) -> None:
    await bench.start("a", handler="stubborn:Handler")
    started = asyncio.get_running_loop().time()
    bench.launcher.stop("a", grace_s=0.15)
    bench.launcher.stop("a", grace_s=60.0)  # who asks again does not give more time
    assert await bench.exit_of("a") == Exit(replica_id="a", how="was killed by SIGKILL", failed=True)
    assert asyncio.get_running_loop().time() - started >= 0.15


@pytest.mark.asyncio
async def test_a_replica_that_dies_is_reported_once_and_others_live(bench: Bench) -> None:
    await bench.start("a")
    await bench.start("b")
    bench.kill("a", bench.pids["a"])
    assert await bench.exit_of("a") == Exit(replica_id="a", how="was killed by SIGKILL", failed=True)
    bench.launcher.stop("a", grace_s=0.0)  # too late, and no error
    bench.launcher.stop("unknown", grace_s=0.0)
    bench.launcher.stop("b", grace_s=30.0)
    await bench.exit_of("b")
    assert [it.replica_id for it in bench.exits] == ["a", "b"]


@pytest.mark.asyncio
async def test_no_exit_is_reported_before_start_returned(bench: Bench) -> None:
    for number in range(5):
        name = f"short-lived-{number}"
        order = LaunchOrder(replica_id=name, backend="v1", handler="obedient:Handler")
        pid = await bench.launcher.start(order)
        bench.kill(name, pid)
        if isinstance(bench.launcher, ProcessLauncher):
            assert name not in {it.replica_id for it in bench.exits}
        await bench.exit_of(name)


@pytest.mark.asyncio
async def test_closing_ends_everything_stubborn_ones_too(bench: Bench) -> None:
    await bench.start("a")
    await bench.start("b", handler="stubborn:Handler")
    async with asyncio.timeout(5.0):
        await bench.launcher.close()
    assert {it.replica_id: it.failed for it in bench.exits} == {"a": False, "b": True}


@pytest.mark.asyncio
async def test_a_launcher_that_cannot_start_says_why() -> None:
    missing = ProcessLauncher(lambda _order, _fd: ["/no/such/program"], lambda _exit: None)
    with pytest.raises(LaunchFailed, match="/no/such/program: No such file"):
        await missing.start(LaunchOrder(replica_id="a", backend="v1", handler="a:B"))
    await missing.close()
    external = ExternalLauncher()
    assert not external.launches
    with pytest.raises(LaunchFailed, match="started by somebody else"):
        await external.start(LaunchOrder(replica_id="a", backend="v1", handler="a:B"))
    external.stop("a", grace_s=0.0)
    await external.close()


def test_replicas_are_told_who_they_are_and_whom_to_attach_to() -> None:
    command = replica_command("127.0.0.1:7070", log_format="json", log_level="debug")
    order = LaunchOrder(replica_id="v1-abc", backend="v1", handler="app:Digits")
    assert command(order, 9) == [
        sys.executable,
        "-m",
        "replica_service",
        "--handler=app:Digits",
        "--backend=v1",
        "--controller=127.0.0.1:7070",
        "--replica-id=v1-abc",
        "--parent-fd=9",
        "--port=0",
        "--metrics-port=0",
        "--log-format=json",
        "--log-level=debug",
    ]


ORPHANS = """
import asyncio, os, sys
from controller_service.shell.launchers.process import ProcessLauncher
from controller_service.shell.launchers.protocol import LaunchOrder

CHILD = "import os, sys; os.read(int(sys.argv[1]), 1); os.write(int(sys.argv[2]), b'orphaned')"

async def main():
    done = int(sys.argv[1])
    os.set_inheritable(done, True)
    def command(order, fd):
        return ["/bin/sh", "-c", f'exec {sys.executable} -S -c "$0" {fd} 1', CHILD]
    launcher = ProcessLauncher(command, lambda exit_: None)
    for name in "ab":
        await launcher.start(LaunchOrder(replica_id=name, backend="v1", handler="a:B"))
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_replicas_learn_of_the_controllers_end_by_sigkill_too() -> None:
    controller = subprocess.Popen([sys.executable, "-c", ORPHANS, "1"], stdout=subprocess.PIPE)
    assert controller.stdout is not None
    assert controller.stdout.readline() == b"started\n"
    controller.kill()
    controller.wait()
    # Its children hold the other end of this pipe: the end of the file is their end.
    assert controller.stdout.read() == b"orphanedorphaned"
    controller.stdout.close()
