"""The client under test: a process that is told what to do and says what came of it, a JSON object a line.

Purpose: starts an adapter, writes commands, keeps reports. README.md beside this file describes the lines.
Invariants: one report a call; what is no report is a mistake of the adapter. The process does not outlive the block.
Owner: whoever runs cases; one process plays many of them, one after the other.
"""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.wait import wait_until, within

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 20.0


class ClientFault(AssertionError):
    """The client, or its adapter, did what it must not do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What an adapter says of its client first."""

    name: str
    level: str
    features: frozenset[str]


class ClientProcess:
    """An adapter that runs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.identity: Identity | None = None
        self.reports: dict[str, dict[str, Any]] = {}
        """By id of the command."""
        self.closed = False
        self._resets = 0
        self.faults: list[str] = []

    async def tell(self, command: Mapping[str, Any]) -> None:
        """One command."""
        stdin = self._process.stdin
        if stdin is None:
            raise ClientFault("the adapter has no stdin")
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise ClientFault(f"the adapter has ended with status {self._process.returncode}") from None

    async def reset(self) -> None:
        """Lets the adapter forget its client: the next case begins. What was reported until then is still here."""
        wanted = self._resets + 1
        await self.tell({"do": "reset"})
        await wait_until(lambda: self._resets >= wanted or self.ended, what="the adapter answers `reset`")
        if self.ended:
            raise ClientFault(f"the adapter has ended with status {self._process.returncode}")

    def forget(self) -> None:
        """Begins a new case."""
        self.reports.clear()
        self.faults.clear()
        self.closed = False

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def read(self) -> None:
        """Reads reports until the process ends."""
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            try:
                report = json.loads(line)
            except ValueError:
                self.faults.append(f"stdout is for reports, got {line!r}")
            else:
                self._take(report)

    def _take(self, report: dict[str, Any]) -> None:
        if "ready" in report:
            ready = report["ready"]
            self.identity = Identity(ready["client"], ready["level"], frozenset(ready.get("features", ())))
        elif report.get("closed"):
            self.closed = True
        elif report.get("reset"):
            self._resets += 1
        elif "id" not in report:
            self.faults.append(f"not a report: {report}")
        elif report["id"] in self.reports:
            self.faults.append(f"{report['id']!r} was reported twice: {self.reports[report['id']]}, then {report}")
        else:
            self.reports[report["id"]] = report


@asynccontextmanager
async def client_process(command: Sequence[str], stderr: IO[Any] | None = None) -> AsyncIterator[ClientProcess]:
    """An adapter that has said what it is. Leaving the block ends it."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={"GRPC_VERBOSITY": "ERROR", **os.environ},
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL if stderr is None else stderr,
        limit=16 * 1024**2,
    )
    client = ClientProcess(process)
    reading = asyncio.create_task(client.read())
    try:
        await wait_until(
            lambda: client.identity or client.ended, timeout=START_TIMEOUT_S, what=f"{command} says `ready`"
        )
        if client.identity is None:
            raise ClientFault(f"{command} ended with status {process.returncode} before it said `ready`")
        yield client
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await within(process.wait(), "the end of the process", timeout=60.0)
        await reading
