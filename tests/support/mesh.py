"""A real mesh for tests: `slotmesh run` on free ports, with everything it starts as processes of their own.

Invariants: all processes carry a mark in their environment, by which they are found whoever adopted them; leaving the
block ends the mesh in order and fails the test if anything of it is left, which is then killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from slotmesh.cli.controller_view import READY_STATE, Members
from slotmesh.cli.operator import Operator
from tests.support.wait import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
MARK: Final = "SLOTMESH_TEST_MESH"
START_TIMEOUT_S: Final = 90.0
"""A busy machine takes ten times as long as a quiet one."""
STOP_TIMEOUT_S: Final = 60.0
GONE_TIMEOUT_S: Final = 20.0
"""Orphans get 10 s to end by themselves, then another 10 s for theirs."""

_READY_LINE: Final = re.compile(r"ready router=(\S+) controller=(\S+?)(?: http=(\S+))?\n")


class MeshRun:
    """A `slotmesh run` process, ready or not, and all that it started."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str, log: Path) -> None:
        self.process = process
        self.log = log
        """Where stderr of all processes goes."""
        self.router_addresses: list[str] = []
        self.controller_address = ""
        self.http_address = ""
        """Empty without an ingress."""
        self._mark = mark

    @property
    def router_address(self) -> str:
        """Of the first router."""
        return self.router_addresses[0]

    async def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        """Reads the `ready` line, which must be the first of stdout."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                line = (await self.process.stdout.readline()).decode()
        except TimeoutError:
            raise AssertionError(f"not ready within {timeout} s:\n{self.log_text()}") from None
        match = _READY_LINE.fullmatch(line)
        assert match, f"expected the ready line, got {line!r}:\n{self.log_text()}"
        self.router_addresses, self.controller_address = match[1].split(","), match[2]
        self.http_address = match[3] or ""

    async def wait_ended(self, timeout: float = STOP_TIMEOUT_S) -> int:
        """Waits for the end of `slotmesh run`; returns its exit status."""
        try:
            async with asyncio.timeout(timeout):
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"has not ended within {timeout} s:\n{self.log_text()}") from None

    async def members(self) -> Members:
        """What the controller says now."""
        async with Operator.at(self.controller_address) as operator:
            return await operator.members()

    async def replica_pids(self) -> dict[str, int]:
        """Process ids of the replicas that are ready, by replica id."""
        return {it.replica_id: it.pid for it in (await self.members()).replicas if it.state == READY_STATE}

    async def kill_replica(self, replica_id: str = "", number: signal.Signals = signal.SIGKILL) -> str:
        """Sends a signal to a replica (to the first one by id, unless told which); returns its id."""
        pids = await self.replica_pids()
        replica_id = replica_id or min(pids)
        os.kill(pids[replica_id], number)
        return replica_id

    async def wait_for_replicas(self, count: int, *, without: str = "", timeout: float = 60.0) -> dict[str, int]:
        """Waits until `count` replicas are ready and linked to all routers, none of them `without`."""
        deadline = asyncio.get_running_loop().time() + timeout
        async with Operator.at(self.controller_address) as operator:
            while True:
                members = await operator.members()
                ready = members.ready()
                linked = all(ready.issubset(router.linked_replica_ids) for router in members.routers)
                if len(ready) == count and without not in ready and linked:
                    return {it.replica_id: it.pid for it in members.replicas if it.replica_id in ready}
                assert asyncio.get_running_loop().time() < deadline, f"within {timeout} s: {members}"
                await asyncio.sleep(0.02)

    async def wait_for_table(self, newer_than: int, timeout: float = 60.0) -> None:
        """Waits until every router has a routing table with a higher revision than this."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            members = await self.members()
            if members.table_revision > newer_than and all(map(members.is_current, members.routers)):
                return
            assert asyncio.get_running_loop().time() < deadline, f"within {timeout} s: {members}"
            await asyncio.sleep(0.02)

    def processes(self) -> dict[int, str]:
        """All processes of the mesh that live, `slotmesh run` included: command lines by process id."""
        return marked(self._mark)

    def log_text(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    async def wait_gone(self, timeout: float = GONE_TIMEOUT_S) -> None:
        """Waits until no process is left. What is left then is killed, and the test fails."""
        try:
            await wait_until(lambda: not self.processes(), timeout=timeout)
        except AssertionError:
            left = self.processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left behind after {timeout} s: {left}\n{self.log_text()}") from None


@asynccontextmanager
async def mesh_run(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, python: Sequence[str] = ()
) -> AsyncIterator[MeshRun]:
    """`slotmesh run` with these arguments; `python`: flags of its interpreter.

    Leaving the block asks it to end if it lives, and finds what is left.
    """
    mark = uuid4().hex
    with tempfile.TemporaryDirectory(prefix="slotmesh-") as folder:
        log = Path(folder, "mesh.log")
        stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *python,
                "-m",
                "slotmesh.cli",
                "run",
                *arguments,
                cwd=ROOT if cwd is None else cwd,
                env={**os.environ, "TMPDIR": folder, **(env or {}), MARK: mark},
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=stderr,
                process_group=0,
            )
        finally:
            os.close(stderr)
        run = MeshRun(process, mark, log)
        try:
            yield run
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
            try:
                await run.wait_ended()
            finally:
                await run.wait_gone()


@asynccontextmanager
async def started_mesh(
    handler: str,
    *,
    replicas: int = 1,
    routers: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    flags: Sequence[str] = (),
) -> AsyncIterator[MeshRun]:
    """A mesh that is ready, with one endpoint.

        async with started_mesh("tests.e2e.handlers:Echo", replicas=4) as mesh: ...

    `cwd` is the repository unless given; `env` adds to the environment; `flags` are more flags of `slotmesh run`.
    """
    arguments = [handler, f"--replicas={replicas}", f"--routers={routers}", "--router-port=0", "--controller-port=0"]
    async with mesh_run(*arguments, *flags, env=env, cwd=cwd) as mesh:
        await mesh.wait_ready()
        yield mesh


def marked(mark: str) -> dict[int, str]:
    """Processes with the mark in their environment. A zombie has none: it only waits to be forgotten."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # ended meanwhile, or somebody else's
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found
