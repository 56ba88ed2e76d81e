"""Processes of each service: off loopback they start by TLS, or with --insecure, and else say what sets it up."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

import pytest

from slotmesh.config import SettingsError
from tests.support.certificates import Authority
from tests.support.mesh import ROOT
from tests.support.token_files import created
from tests.support.wait import within

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.timeout(90), pytest.mark.long]

SERVICES = {
    "controller_service": ("--launcher=external",),
    "router_service": ("--controller=127.0.0.1:1",),
    "replica_service": ("--handler=tests.e2e.handlers:Gallery", "--backend=gallery"),
}
OPEN = ("--host=0.0.0.0", "--advertise=127.0.0.1")


@dataclass(frozen=True)
class Ended:
    status: int | None
    """None where it has started."""
    said: str


async def started(service: str, *flags: str) -> Ended:
    """Starts a process, and ends it when it listens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", service, "--port=0", "--metrics-port=-1", *SERVICES[service], *flags),
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    assert process.stderr is not None
    lines = []
    try:
        async with asyncio.timeout(60):
            while line := (await process.stderr.readline()).decode():
                lines.append(line)
                if "listening" in line:
                    return Ended(None, "".join(lines))
            return Ended(await process.wait(), "".join(lines))
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.wait(), "the end of the process", timeout=60.0)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return Authority(tmp_path / "certs").whole_mesh()


@pytest.mark.parametrize("service", SERVICES)
async def test_the_matrix_of_starts(service: str, certs: Path) -> None:
    tls, wrong = f"--tls-dir={certs}", certs / "operator-ops"
    plain, insecure, secure, mixed_up = await asyncio.gather(
        started(service, *OPEN),
        started(service, *OPEN, "--insecure"),
        started(service, *OPEN, tls),
        started(service, *OPEN, tls, f"--tls-cert={wrong}.crt", f"--tls-key={wrong}.key"),
    )
    assert plain.status == SettingsError.exit_code
    assert plain.said.startswith("--host: 0.0.0.0 can be reached from other machines")
    assert "slotmesh certs init" in plain.said
    assert "--tls-dir" in plain.said
    assert insecure.status is None, insecure.said
    assert secure.status is None, secure.said
    assert mixed_up.status == SettingsError.exit_code
    assert "spiffe://mesh.test/operator/ops, which is no" in mixed_up.said
    assert "Traceback" not in plain.said + mixed_up.said


@pytest.mark.parametrize("service", ["controller_service", "router_service"])
async def test_tokens_travel_by_tls_only(service: str, certs: Path, tmp_path: Path) -> None:
    created(tmp_path / "tokens.json")
    tokens, tls = f"--tokens={tmp_path / 'tokens.json'}", f"--tls-dir={certs}"
    plain, nobody, secure = await asyncio.gather(
        started(service, "--token-port=0", tokens, "--insecure"),
        started(service, "--token-port=0", tls),
        started(service, "--token-port=0", tokens, tls),
    )
    assert (plain.status, nobody.status, secure.status) == (SettingsError.exit_code, SettingsError.exit_code, None)
    assert "tokens need TLS" in plain.said
    assert "--token-port: no client could use it" in nobody.said
    assert "token_address" in secure.said
