"""docs/security.md: its five minutes, as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.consoles import provide, run_typed, typed
from tests.support.mesh import ROOT, mesh_run
from tests.support.snippets import snippets_of

pytestmark = pytest.mark.long

DOCUMENT: Final = ROOT / "docs" / "security.md"
SNIPPETS: Final = [it for it in snippets_of(DOCUMENT) if it.language == "console"]
RUN: Final = re.compile(r"\$ slotmesh run greeter:Greeter --tls-dir certs\n")
HANDLER: Final = """\
class Greeter:
    async def hello(self, name: str) -> str:
        return f"Hello, {name}!"
"""


@pytest.mark.slow
@pytest.mark.asyncio
async def test_five_minutes_on_one_machine(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(HANDLER, "utf-8")
    before, run, *after = SNIPPETS
    assert RUN.match(run.text)
    provide(tmp_path, {"router": "", "controller": ""})
    for each in typed(before):
        await run_typed(each, tmp_path)
    flags = ("--tls-dir=certs", "--router-port=0", "--controller-port=0")
    env = {"PYTHONPATH": str(ROOT)}
    async with mesh_run("greeter:Greeter", *flags, cwd=tmp_path, env=env) as mesh:
        await mesh.wait_ready()
        provide(tmp_path, {"router": mesh.router_address, "controller": mesh.controller_address})
        for snippet in after:
            for each in typed(snippet):
                await run_typed(each, tmp_path)
