"""The Node client against a real router and real replicas: its own tests, run from here."""

from __future__ import annotations

import os
from asyncio.subprocess import STDOUT
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conformance.node import CLIENT, node
from tests.support.certificates import Authority
from tests.support.mesh import started_mesh
from tests.support.recorder import VARIABLE, Event, read_records
from tests.support.shell import program

pytestmark = pytest.mark.asyncio

UNCONNECTED = """
import('./flags.js').then(async ({ connectionOf }) => {
  const { connect } = await import('./lib/index.js');
  const { address, options } = connectionOf(process.argv.slice(1), process.env);
  const mesh = connect(address, { ...options, connectTimeout: 300 });
  await mesh.endpoint('Digits').call('info').then(() => console.log('let in'), () => console.log('ok'));
  await mesh.close({ grace: 0 });
});
"""
"""Shows a token, and no certificate, where one is asked for."""


async def run_node(*arguments: str, **env: str) -> tuple[int | None, str]:
    """Exit status and output."""
    said = await program(node(), *arguments, cwd=CLIENT, env={**os.environ, **env}, stderr=STDOUT)
    return said.status, said.out


async def test_calls_results_and_failures() -> None:
    node()
    async with started_mesh("tests.e2e.handlers:Gallery", replicas=2) as mesh:
        status, output = await run_node("--test", "test/gallery.test.js", SLOTMESH_ROUTER=mesh.router_address)
    assert status == 0, output
    assert "skipped 0" in output


@pytest.mark.long
async def test_order_of_keys(tmp_path: Path) -> None:
    node()
    file = tmp_path / "records"
    async with started_mesh("tests.e2e.handlers:Ledger", replicas=2, env={VARIABLE: str(file)}) as mesh:
        status, output = await run_node("--test", "test/ledger.test.js", SLOTMESH_LEDGER_ROUTER=mesh.router_address)
    assert status == 0, output
    assert "skipped 0" in output
    executed: dict[str, list[str]] = defaultdict(list)
    for record in read_records(file):
        if record.event is Event.STARTED:
            executed[record.key].append(str(record.call))
    assert executed == {key: [str(number) for number in range(500)] for key in "abcdefgh"}


@pytest.mark.long
async def test_the_example_runs(tmp_path: Path) -> None:
    """By TLS; the other tests are in plain text."""
    node()
    authority = Authority(tmp_path)
    flags = ["--tls-dir", str(authority.whole_mesh())]
    authority.issue("client", "alice")
    async with started_mesh("examples.digits.app:Digits", flags=flags) as mesh:
        status, output = await run_node("example.js", mesh.router_address, *flags, "--name=client-alice")
        env = {"SLOTMESH_TLS_CA": str(authority.ca), "SLOTMESH_TOKEN": "unknown"}
        refused = await run_node("--eval", UNCONNECTED, mesh.router_address, **env)
    assert status == 0, output
    assert "bars look like" in output
    assert "InvalidArgument: INVALID_ARGUMENT/BAD_ARGUMENTS" in output
    assert "(executed: no)" in output
    assert "taken back:" in output
    assert refused == (0, "ok\n")
