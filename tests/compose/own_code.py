"""The example of a user's own code, as its README runs it: it is called, by its endpoint, at the published port."""

from __future__ import annotations

import json
import sys
from asyncio import create_subprocess_exec, timeout
from asyncio.subprocess import PIPE
from typing import Final

from tests.compose.project import ComposeProject
from tests.support.controllers import eventually
from tests.support.mesh import ROOT

ROUTERS: Final = "127.0.0.1:7071"
SETTLED_S: Final = 120.0
CALL: Final = ("words", "stems", '["running dogs"]')
STEMS: Final = ["run", "dog"]


async def run(project: ComposeProject) -> None:
    """Raises AssertionError where it does not answer."""
    await project.up()
    said = b""

    async def answers() -> bool:
        nonlocal said
        command = (sys.executable, "-m", "slotmesh.cli", "call", *CALL, f"--address={ROUTERS}")
        process = await create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
        async with timeout(60):
            out, err = await process.communicate()
        said = out + err
        return process.returncode == 0

    await eventually(answers, what="the call of examples/compose-app/README.md is answered", timeout=SETTLED_S)
    assert json.loads(said) == STEMS, said
    sys.stdout.write(f"compose-test: examples/compose-app answers {said.decode()}")
