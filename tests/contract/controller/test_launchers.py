"""What every launcher does: the fake one, and those that start processes and pods, are held to the same.

tests/kube/ has the one that starts pods with a real API server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller_service.shell.launchers.kubernetes.launcher import KubernetesLauncher
from controller_service.shell.launchers.launched_processes import LaunchDirectory
from controller_service.shell.launchers.process import CommandOf, ProcessLauncher, replica_command
from controller_service.shell.launchers.protocol import Exit, Launcher, LaunchFailed, LaunchOrder
from controller_service.shell.replica_logs import LogBook
from tests.support.fakes.launcher import FakeLauncher
from tests.support.kubernetes_launcher import following_pods
from tests.support.wait import wait_until

OBEDIENT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
KILLED = Exit(replica_id="a", how="was killed by SIGKILL", failed=True, was_killed=True)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def order_of(backend: str, *, handler: str = "obedient:Handler") -> LaunchOrder:
    return LaunchOrder(backend=backend, handler=handler, template="t", fixed="f")


@dataclass
class Bench:
    """A launcher under test, and what only the test knows about its kind. Replicas have their backend's name as id."""

    launcher: Launcher
    exits: list[Exit]
    end: Callable[[str, int], None]
    """Ends a replica from outside: its id and process id."""
    await_ready: Callable[[int], Any]
    """Waits until a replica reacts to signals as its handler says."""
    make_stubborn: Callable[[str], None]
    pids: dict[str, int] = field(default_factory=dict)

    async def start(self, replica_id: str, *, handler: str = "obedient:Handler") -> int:
        if handler.startswith("stubborn"):
            self.make_stubborn(replica_id)
        await self.launcher.start(order_of(replica_id, handler=handler), 1)
        (instance,) = [it for it in self.launcher.observe() if it.replica_id == replica_id]
        self.pids[replica_id] = instance.pid
        await self.await_ready(instance.pid)
        return instance.pid

    async def exit_of(self, replica_id: str) -> Exit:
        await wait_until(lambda: any(it.replica_id == replica_id for it in self.exits), what=f"exit of {replica_id}")
        (found,) = [it for it in self.exits if it.replica_id == replica_id]
        return found


def _catches_sigterm(pid: int) -> bool:
    """Whether the process handles or ignores SIGTERM by now."""
    status = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in status if line.startswith(("SigCgt", "SigIgn"))}
    return bool((masks["SigCgt"] | masks["SigIgn"]) >> (signal.SIGTERM - 1) & 1)


async def catching_sigterm(pid: int) -> None:
    await wait_until(lambda: _catches_sigterm(pid), what="signal handlers")


def command(_replica_id: str, order: LaunchOrder) -> list[str]:
    """A program in a replica's place; its last argument is what a replica's process is known by."""
    program = STUBBORN if order.handler.startswith("stubborn") else OBEDIENT
    return [sys.executable, "-S", "-c", program, f"--replica-id={_replica_id}"]


def process_launcher(
    path: Path,
    exits: list[Exit],
    command: CommandOf = command,
    *,
    mint_id: Callable[[str], str] = lambda backend: backend,
    **options: Any,
) -> ProcessLauncher:
    directory = LaunchDirectory.open(path)
    return ProcessLauncher(
        command, exits.append, directory, LogBook(max_bytes=1 << 20), mint_id, close_grace_s=0.1, **options
    )


@pytest_asyncio.fixture(params=["fake", "process", "kubernetes"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    exits: list[Exit] = []
    if request.param == "kubernetes":
        async with following_pods() as pods:

            async def runs_already(_pid: int) -> None:
                """Pods of the fake API server run when they are created."""

            yield Bench(
                pods.launcher, pods.exits, lambda name, _: pods.api.end(name), runs_already, pods.api.stubborn.add
            )
        return
    if request.param == "fake":
        fake = FakeLauncher(exits.append, mint_id=lambda backend: backend)

        async def at_once(_pid: int) -> None:
            """A fake needs no time."""

        bench = Bench(fake, exits, lambda replica_id, _: fake.exit(replica_id), at_once, fake.stubborn.add)
    else:
        bench = Bench(
            process_launcher(tmp_path / "launched", exits),
            exits,
            lambda _, pid: os.kill(pid, signal.SIGKILL),
            catching_sigterm,
            lambda _: None,
        )
    yield bench
    async with asyncio.timeout(10.0):
        await bench.launcher.close()


@pytest.mark.asyncio
async def test_a_replica_that_is_asked_ends_well(bench: Bench) -> None:
    assert bench.launcher.launches
    await bench.start("a")
    bench.launcher.stop("a", grace_s=30.0)
    bench.launcher.stop("a", grace_s=30.0)
    assert await bench.exit_of("a") == Exit(replica_id="a", how="exited with status 0", failed=False)


@pytest.mark.asyncio
async def test_a_replica_that_does_not_end_is_killed_after_the_grace(bench: Bench) -> None:
    await bench.start("a", handler="stubborn:Handler")
    started = asyncio.get_running_loop().time()
    is_pod = isinstance(bench.launcher, KubernetesLauncher)
    grace_s = 3.0 if is_pod else 0.15  # of whole seconds, which the fake API server makes a twentieth as long
    bench.launcher.stop("a", grace_s=grace_s)
    bench.launcher.stop("a", grace_s=60.0)  # who asks again does not give more time
    assert await bench.exit_of("a") == KILLED
    assert asyncio.get_running_loop().time() - started >= 0.15


@pytest.mark.asyncio
async def test_a_replica_that_dies_is_reported_once_and_others_live(bench: Bench) -> None:
    await bench.start("a")
    await bench.start("b")
    bench.end("a", bench.pids["a"])
    assert await bench.exit_of("a") == KILLED
    bench.launcher.stop("a", grace_s=0.0)  # too late, and no error
    bench.launcher.stop("unknown", grace_s=0.0)
    bench.launcher.stop("b", grace_s=30.0)
    await bench.exit_of("b")
    assert [it.replica_id for it in bench.exits] == ["a", "b"]


@pytest.mark.asyncio
async def test_how_many_should_run_is_a_level_that_may_be_repeated(tmp_path: Path) -> None:
    exits: list[Exit] = []
    numbers = itertools.count(1)
    fake = FakeLauncher(exits.append)
    real = process_launcher(tmp_path / "l", exits, mint_id=lambda backend: f"{backend}-{next(numbers)}")
    for launcher in (fake, real):
        await launcher.start(order_of("v1"), 2)
        await launcher.start(order_of("v1"), 2)
        assert [it.replica_id for it in launcher.observe()] == ["v1-1", "v1-2"]
        await launcher.start(order_of("v2"), 1)
        await launcher.start(order_of("v1"), 1)  # fewer than there are: nothing is stopped by this
        assert len(launcher.observe()) == 3
        launcher.stop("v1-1", grace_s=30.0)
        await launcher.start(order_of("v1"), 2)  # one that was asked to end counts no more
        assert len([it for it in launcher.observe() if it.order.backend == "v1"]) == 3
        async with asyncio.timeout(10.0):
            await launcher.close()
        assert not launcher.observe()


@pytest.mark.asyncio
async def test_a_replica_that_is_killed_is_reaped_whatever_it_ignores(bench: Bench) -> None:
    await bench.start("a", handler="stubborn:Handler")
    bench.launcher.kill("a")
    bench.launcher.kill("a")
    bench.launcher.kill("unknown")
    assert await bench.exit_of("a") == KILLED


@pytest.mark.asyncio
async def test_no_exit_is_reported_before_start_returned(bench: Bench) -> None:
    for number in range(5):
        name = f"short-lived-{number}"
        await bench.launcher.start(order_of(name), 1)
        (instance,) = bench.launcher.observe()
        bench.end(name, instance.pid)
        if isinstance(bench.launcher, ProcessLauncher):
            assert name not in {it.replica_id for it in bench.exits}
        await bench.exit_of(name)


@pytest.mark.asyncio
async def test_closing_ends_everything_stubborn_ones_too(bench: Bench) -> None:
    await bench.start("a")
    await bench.start("b", handler="stubborn:Handler")
    async with asyncio.timeout(20.0):
        await bench.launcher.close()
    assert {it.replica_id: it.failed for it in bench.exits} == {"a": False, "b": True}


@pytest.mark.asyncio
async def test_a_launcher_that_cannot_start_says_why(tmp_path: Path) -> None:
    missing = process_launcher(tmp_path / "l", [], lambda *_: ["/no/such/program"])
    with pytest.raises(LaunchFailed, match="/no/such/program: No such file"):
        await missing.start(order_of("v1"), 1)
    await missing.close()
    external = Launcher()
    assert not external.launches
    with pytest.raises(LaunchFailed, match="started by another system"):
        await external.start(order_of("v1"), 1)
    external.stop("a", grace_s=0.0)
    external.kill("a")
    assert not external.observe()
    await external.leave()
    await external.close()


def test_replicas_are_told_who_they_are_and_whom_to_attach_to() -> None:
    command = replica_command(
        lambda: ["127.0.0.1:7070"],
        log_format="json",
        log_level="debug",
        orphan_timeout=timedelta(minutes=5),
        parent_fd=9,
    )
    assert command("v1-abc", LaunchOrder(backend="v1", handler="app:Digits")) == [
        sys.executable,
        "-m",
        "replica_service",
        "--handler=app:Digits",
        "--backend=v1",
        "--controller=127.0.0.1:7070",
        "--replica-id=v1-abc",
        "--parent-fd=9",
        "--orphan-timeout=5m",
        "--port=0",
        "--metrics-port=0",
        "--log-format=json",
        "--log-level=debug",
    ]


TIED = """
import asyncio, os, sys
from pathlib import Path
from controller_service.shell.launchers.launched_processes import LaunchDirectory
from controller_service.shell.launchers.process import ProcessLauncher
from controller_service.shell.launchers.protocol import LaunchOrder
from controller_service.shell.replica_logs import LogBook
from slotmesh.runtime.parent import ParentPipe

CHILD = "import os, sys; os.read(int(sys.argv[1]), 1); os.write(int(sys.argv[2]), b'orphaned')"

async def main():
    pipe, done = ParentPipe(), os.dup(1)
    os.set_inheritable(done, True)
    def command(replica_id, order):
        # Its own output goes to a file: it says what it has to say on a copy of this process's.
        return [sys.executable, "-S", "-c", CHILD, str(pipe.fd), str(done)]
    launcher = ProcessLauncher(
        command, lambda exit_: None, LaunchDirectory.open(Path(sys.argv[1])), LogBook(max_bytes=1 << 20),
        lambda backend: backend, parent_fd=pipe.fd,
    )
    launcher._inherited += (done,)
    for name in "ab":
        await launcher.start(LaunchOrder(backend=name, handler="a:B"), 1)
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_replicas_that_are_tied_to_a_pipe_learn_of_its_end_by_sigkill_too(tmp_path: Path) -> None:
    controller = subprocess.Popen([sys.executable, "-c", TIED, str(tmp_path / "l")], stdout=subprocess.PIPE)
    assert controller.stdout is not None
    assert controller.stdout.readline() == b"started\n"
    controller.kill()
    controller.wait(timeout=60)
    # Its children hold the other end of this pipe: the end of the file is their end.
    assert controller.stdout.read() == b"orphanedorphaned"
    controller.stdout.close()
