"""The digits example as a user starts it: real processes, real images, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.mesh import MARK, ROOT, MeshRun
from tests.support.shell import slotmesh
from tests.support.wait import wait_until

REPORT_TIMEOUT_S = 90.0


@asynccontextmanager
async def example(folder: Path, *arguments: str) -> AsyncIterator[MeshRun]:
    """`python -m examples.digits.run`; leaving the block fails the test where a process of it is left."""
    mark, log = uuid4().hex, folder / "stderr.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.digits.run", *arguments),
            cwd=ROOT,
            env={**os.environ, MARK: mark},
            stdout=PIPE,
            stderr=stderr,
        )
    run = MeshRun(process, mark, log)
    try:
        yield run
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
        await run.wait_ended()
        await run.wait_gone()


async def lines_until(run: MeshRun, wanted: str) -> list[str]:
    """Lines of stdout up to the first that starts with `wanted`; all of them where it is empty."""
    assert run.process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(REPORT_TIMEOUT_S):
            async for line in run.process.stdout:
                lines.append(line.decode().rstrip("\n"))
                if wanted and lines[-1].startswith(wanted):
                    return lines
    except TimeoutError:
        raise AssertionError(f"no more than {lines} in {REPORT_TIMEOUT_S} s:\n{run.log_text()}") from None
    assert not wanted, f"ended without {wanted!r} after {lines}:\n{run.log_text()}"
    return lines


@pytest.mark.asyncio
async def test_once_reports_and_ends(tmp_path: Path) -> None:
    async with example(tmp_path, "--once", "--seconds=0.5") as run:
        lines = await lines_until(run, "")
        assert await run.wait_ended() == 0, run.log_text()
        await run.wait_gone()
        assert "slotmesh call" not in run.log_text(), "how to call a mesh that is gone"

    report = "\n".join(lines)
    accuracy = re.search(r"^accuracy: (0\.\d{3})$", report, re.MULTILINE)
    assert accuracy, report
    assert 0.9 < float(accuracy[1]) < 1.0
    throughput = re.search(r"^throughput: ([\d,]+) calls/s$", report, re.MULTILINE)
    assert throughput, report
    assert int(throughput[1].replace(",", "")) > 0
    assert re.search(r"^latency: p50 [\d.]+ ms, p99 [\d.]+ ms, ", report, re.MULTILINE), report
    assert len(re.findall(r"^  Digits-\S+ +█+ +[\d,]+$", report, re.MULTILINE)) == 2, report


@pytest.mark.long
@pytest.mark.asyncio
async def test_without_once_it_stays_up_until_it_is_interrupted(tmp_path: Path) -> None:
    ports = ("--router-port=0", "--controller-port=0")
    async with example(tmp_path, "--replicas=1", "--seconds=0.1", *ports) as run:
        lines = await lines_until(run, "Ctrl-C")
        command = next(line.split() for line in lines if line.strip().startswith("slotmesh call") and "info" in line)
        called = await slotmesh(*command[1:])
        assert called.status == 0, called.err
        assert '"logistic"' in called.out
        run.process.send_signal(signal.SIGINT)
        assert await run.wait_ended() == 0, run.log_text()


@pytest.mark.long
@pytest.mark.asyncio
async def test_interrupted_before_its_report_it_takes_the_mesh_down(tmp_path: Path) -> None:
    any_ports = ("--router-port=0", "--controller-port=0")
    async with example(tmp_path, *any_ports, "--replicas=1", "--seconds=60") as run:
        await wait_until(lambda: "slotmesh: ready" in run.log_text(), timeout=90.0)
        run.process.send_signal(signal.SIGINT)
        assert await run.wait_ended() == 130, run.log_text()


@pytest.mark.long
@pytest.mark.asyncio
async def test_killed_it_leaves_nothing_behind(tmp_path: Path) -> None:
    async with example(tmp_path, "--once", "--replicas=1", "--seconds=60") as run:
        await wait_until(lambda: len(run.processes()) >= 4, timeout=30.0)
        run.process.kill()
        assert await run.wait_ended() == -signal.SIGKILL
        await run.wait_gone()
