"""The prefill-and-decode example as a user starts it: real processes, every word checked, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.mesh import MARK, ROOT, MeshRun

RUN_TIMEOUT_S = 60.0


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_every_word_is_right(tmp_path: Path) -> None:
    mark, log = uuid4().hex, tmp_path / "stderr.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.prefill_decode.run", "--requests=40", "--together=8", "--words=8"),
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
    assert report.startswith("requests: 40, 40 right, 8 at a time\n"), report
    assert re.search(r"^reserving both: p50 [\d.]+ ms$", report, re.MULTILINE), report
    pairs = re.findall(r"^  Prefill-\S+ -> Decode-\S+  (\d+)$", report, re.MULTILINE)
    assert sum(map(int, pairs)) == 40, report
    assert "handler raised" not in run.log_text()
