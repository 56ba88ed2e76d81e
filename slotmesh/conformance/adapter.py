"""The adapter of the client under test: a process that takes commands and reports outcomes, a JSON object a line.

Purpose: starts it, writes commands, keeps its reports. docs/protocol.md describes the lines.
Invariants: one report for each call; any other line is an error of the adapter. The process does not outlive the block.
Owner: the program that plays cases; one process plays many, one after another.
"""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from slotmesh.conformance.case import CAPABILITIES, LEVELS, SESSIONS
from slotmesh.conformance.waiting import AdapterError, NotKept, until

START_TIMEOUT_S: Final = 20.0
"""How long an adapter may take until it is ready."""
RESET_TIMEOUT_S: Final = 20.0
"""How long an adapter may take to drop its client."""
MAX_LINE_BYTES: Final = 16 * 1024**2

OUTCOMES: Final = ("result", "error", "cancelled", "done", "results", "values", "refused")
"""Fields of a report about a call: it has one of them, or `values` with `error`."""


@dataclass(frozen=True, slots=True)
class ClientUnderTest:
    """What an adapter states about its client."""

    name: str
    level: str
    capabilities: frozenset[str]
    """Optional parts of the protocol that it has; `sessions` if its level is `resumable`."""

    @property
    def unknown_capabilities(self) -> list[str]:
        """Those that no case needs: probably misspelt."""
        return sorted(self.capabilities - CAPABILITIES - {SESSIONS})


class AdapterProcess:
    """A running adapter."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.client: ClientUnderTest | None = None
        self.reports: dict[str, dict[str, Any]] = {}
        """By id of the command."""
        self.closed = False
        self._resets = 0
        self.on_report: Callable[[Any], object] = lambda _report: None
        """Called with each line of the adapter."""
        self.lost = ""
        """Why no further case can be played; empty if one can."""
        self._errors: dict[str, tuple[str, int]] = {}
        """The first error of each kind, and how many there were."""

    async def command(self, command: Mapping[str, Any]) -> None:
        """Writes one command."""
        stdin = self._process.stdin
        if stdin is None:
            raise AdapterError("the adapter has no stdin")
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise AdapterError(self._end) from None

    async def reset(self) -> None:
        """Lets the adapter drop its client: the next case begins. Reports that arrived before are kept."""
        wanted = self._resets + 1
        await self.command({"do": "reset"})
        try:
            await until(lambda: self._resets >= wanted or self.ended, "", timeout_s=RESET_TIMEOUT_S)
        except NotKept:
            answer = (
                f'the adapter has not written {{"reset": true}} within {RESET_TIMEOUT_S:g} s of the command `reset`'
            )
            raise AdapterError(answer) from None
        if self.ended:
            raise AdapterError(self._end)

    def forget(self) -> None:
        """Begins a new case."""
        self.reports.clear()
        self._errors.clear()
        self.closed = False

    @property
    def errors(self) -> list[str]:
        """Lines that are no reports, and repeated reports of a call: the first of each kind, with their number."""
        return [f"{first} ({count} such lines)" if count > 1 else first for first, count in self._errors.values()]

    def _error(self, kind: str, text: str) -> None:
        first, count = self._errors.get(kind, (text, 0))
        self._errors[kind] = first, count + 1

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    @property
    def _end(self) -> str:
        return f"the adapter has ended with status {self._process.returncode}"

    async def read(self) -> None:
        """Reads reports until the process ends."""
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            try:
                report = json.loads(line)
            except ValueError:
                self._error("stdout", f"stdout is for reports, got {line[:200]!r}")
            else:
                self._take(report)

    def _take(self, report: Any) -> None:
        self.on_report(report)
        match report:
            case {"ready": {"client": str(name), "level": str(level), "capabilities": list(named)}} if level in LEVELS:
                capabilities = frozenset([*named, SESSIONS] if level == "resumable" else named)
                self.client = ClientUnderTest(name, level, capabilities)
            case {"ready": _}:
                fields = f"`client` (a text), `level` ({', '.join(LEVELS)}) and `capabilities` (a list)"
                self._error("ready", f"`ready` needs {fields}, got {report}")
            case {"closed": True}:
                self.closed = True
            case {"reset": True}:
                self._resets += 1
            case {"id": str()} if len(report) < 2 or not report.keys() <= {"id", *OUTCOMES}:
                self._error("fields", f"a report has an id and one of {', '.join(OUTCOMES)}, got {report}")
            case {"id": str(name)} if name not in self.reports:
                self.reports[name] = report
            case {"id": str(name)}:
                self._error(f"repeated {name}", f"{name!r} was reported again: {self.reports[name]}, then {report}")
            case _:
                self._error("unknown", f"not a report: {report}")


@asynccontextmanager
async def adapter_process(command: Sequence[str]) -> AsyncIterator[AdapterProcess]:
    """An adapter that is ready. Leaving the block ends it. Its stderr is that of this process.

    Raises:
        AdapterError: it cannot be started, or is not ready in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env={"GRPC_VERBOSITY": "ERROR", **os.environ}, stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES
        )
    except (OSError, IndexError) as error:
        raise AdapterError(f"the adapter {' '.join(command)!r} cannot be started: {error}") from None
    adapter = AdapterProcess(process)
    reading = asyncio.create_task(adapter.read())
    try:
        with suppress(NotKept):
            await until(lambda: adapter.client or adapter.ended or adapter.errors, "", timeout_s=START_TIMEOUT_S)
        if adapter.client is None:
            end = f"ended with status {process.returncode}" if adapter.ended else f"took {START_TIMEOUT_S:g} s"
            end = (
                f"has to write `ready` first: {'; '.join(adapter.errors)}"
                if adapter.errors
                else f"{end} before `ready`"
            )
            raise AdapterError(f"{' '.join(command)!r} {end}")
        yield adapter
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading
