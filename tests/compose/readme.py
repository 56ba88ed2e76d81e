"""What README.md does with docker compose: each line prints what it shows, once the mesh is up."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import suppress
from typing import Final
from urllib.request import urlopen

from tests.compose.project import ComposeProject
from tests.compose.scenario import HTTP, SETTLED_S, settled
from tests.support.console import Command, commands_of
from tests.support.controllers import eventually
from tests.support.grpc_tools import Terminal
from tests.support.mesh import ROOT
from tests.support.snippets import snippets_of

COMPOSE: Final = "docker compose up -d"


async def run(project: ComposeProject) -> None:
    """Raises AssertionError where something else is printed."""
    terminal, ran = Terminal({}), 0
    for command in _commands():
        if command.text.startswith(COMPOSE):
            await project.up(**_scales(command))
            await settled(routers=project.scales["router"], replicas=project.scales["replica"])
            await eventually(_is_ready, what="the ingress is ready", timeout=SETTLED_S)
        else:
            output = await terminal.run(command)
            assert command.explains(output), f"{command.text}\nprints\n{output}\nand not\n{command.shown}"
            ran += 1
    assert ran > 0
    sys.stdout.write(f"compose-test: {ran} calls of README.md print what it says\n")


async def _is_ready() -> bool:
    def ask() -> bool:
        with urlopen(f"http://{HTTP}/-/readyz", timeout=10) as response:
            return bool(response.status == 200)

    with suppress(OSError):
        return await asyncio.to_thread(ask)
    return False


def _commands() -> list[Command]:
    (snippet,) = (each for each in snippets_of(ROOT / "README.md") if each.text.startswith(f"$ {COMPOSE}"))
    return list(commands_of(snippet))


def _scales(command: Command) -> dict[str, int]:
    words = shlex.split(command.text, comments=True)
    scales = [words[at + 1].partition("=") for at, word in enumerate(words) if word == "--scale"]
    return {service: int(number) for service, _, number in scales}
