"""Runs an example as a user starts it, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from uuid import uuid4

from tests.support.mesh import MARK, ROOT, MeshRun

RUN_TIMEOUT_S = 60.0


async def report_of(module: str, *flags: str, log: Path) -> str:
    """What the example prints. Its exit status was 0, no handler of it raised, and none of its processes is left.

    What it and its processes write to stderr is in `log`.
    """
    mark = uuid4().hex
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *flags),
            cwd=ROOT,
            env={**os.environ, MARK: mark},
            stdout=PIPE,
            stderr=stderr,
        )
    run = MeshRun(process, mark, log)
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            report = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.terminate()
        await run.wait_ended()
        await run.wait_gone()
    assert process.returncode == 0, run.log_text()
    assert "handler raised" not in run.log_text()
    return report
