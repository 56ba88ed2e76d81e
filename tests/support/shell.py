"""The command line as people use it: a process, what it was given, what it said."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.mesh import ROOT
from tests.support.wait import within

COMMAND_TIMEOUT_S = 60.0
"""A busy machine takes ten times as long as a quiet one."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

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
    process = await asyncio.create_subprocess_exec(
        python,
        "-m",
        "slotmesh.cli",
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT if cwd is None else cwd,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **(env or {})},
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await within(process.wait(), "the end of the process", timeout=60.0)
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())
