"""Programs as people run them, `slotmesh` first: what they were given, what they said. None outlives its block."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.mesh import ROOT
from tests.support.wait import within

COMMAND_TIMEOUT_S = 60.0
"""A busy machine takes ten times as long as a quiet one."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a program ended."""

    status: int
    out: str
    err: str


async def slotmesh(
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = COMMAND_TIMEOUT_S,
    python: str = sys.executable,
) -> Said:
    """Runs `slotmesh ARGUMENTS` to its end. `env` adds to the environment; `python` has another slotmesh."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **(env or {})}
    cwd = ROOT if cwd is None else cwd
    return await program(python, "-m", "slotmesh.cli", *arguments, stdin=stdin, timeout=timeout, cwd=cwd, env=env)


async def program(
    *command: str | Path, stdin: str = "", timeout: float = COMMAND_TIMEOUT_S, stderr: int = PIPE, **options: Any
) -> Said:
    """Runs a program to its end. `options`: of `asyncio.create_subprocess_exec`."""
    async with running(*command, stdin=PIPE, stdout=PIPE, stderr=stderr, **options) as process:
        what = f"the end of {' '.join(map(str, command))[:200]}"
        out, err = await within(process.communicate(stdin.encode()), what, timeout=timeout)
    assert process.returncode is not None
    return Said(process.returncode, out.decode(errors="replace"), (err or b"").decode(errors="replace"))


@asynccontextmanager
async def running(*command: str | Path, **options: Any) -> AsyncIterator[Process]:
    """A process, which is killed at the end of the block if it has not ended. `options`: as `program`."""
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await within(process.communicate(), "the end of the process", timeout=60.0)
        await asyncio.sleep(0)  # the transport closes its pipes in a callback
