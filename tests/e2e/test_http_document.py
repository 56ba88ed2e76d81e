"""docs/http.md: its commands print what it says, by the real curl."""

from __future__ import annotations

import os
import shutil
from asyncio.subprocess import STDOUT
from pathlib import Path
from typing import Final

import pytest

from tests.support.console import Command, commands_of
from tests.support.consoles import provide
from tests.support.mesh import ROOT, mesh_run
from tests.support.shell import program
from tests.support.snippets import snippets_of

pytestmark = pytest.mark.long

DOCUMENT: Final = ROOT / "docs" / "http.md"
SNIPPETS: Final = snippets_of(DOCUMENT)
COMMANDS: Final = [it for snippet in SNIPPETS if snippet.language == "console" for it in commands_of(snippet)]


async def printed(command: Command, http: str, folder: Path) -> str:
    text = command.text.replace("localhost:8080", http)
    path = f"{folder}/bin:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
    return (await program("bash", "-c", text, cwd=folder, env=env, stderr=STDOUT)).out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.asyncio
async def test_commands_print_what_the_document_says(tmp_path: Path) -> None:
    [handler] = [it.text for it in SNIPPETS if it.language == "python"]
    [routes] = [it.text for it in SNIPPETS if it.language == "yaml"]
    (tmp_path / "greeter.py").write_text(handler, "utf-8")
    (tmp_path / "routes.yaml").write_text(routes, "utf-8")
    flags = ("--http=0", "--router-port=0", "--controller-port=0")
    async with mesh_run("greeter:Greeter", *flags, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}) as mesh:
        await mesh.wait_ready()
        provide(tmp_path, {"router": mesh.router_address, "controller": mesh.controller_address})
        for command in COMMANDS:
            output = await printed(command, mesh.http_address, tmp_path)
            assert command.explains(output), f"{command.place}: {command.text}\nprints\n{output}"
