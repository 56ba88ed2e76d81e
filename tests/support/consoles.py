"""The shell sessions of a document: what was typed, and what has to be printed for it.

A line that begins with `$ ` is typed; those after it are what it prints on stdout. There `…` is any text, and as a line
of its own any number of lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.mesh import ROOT
from tests.support.shell import program
from tests.support.snippets import Snippet

COMMAND_S: Final = 90.0
OF_ROUTERS: Final = ("call",)
"""Commands that go to a router; the others go to the controller."""


@dataclass(frozen=True, slots=True)
class Typed:
    """One command of a document."""

    where: str
    command: str
    prints: tuple[str, ...]


def typed(snippet: Snippet) -> Iterator[Typed]:
    """The commands of a block, in order."""
    command, prints, line = "", list[str](), snippet.line
    for number, text in enumerate(snippet.text.splitlines(), snippet.line):
        if text.startswith("$ "):
            if command:
                yield Typed(f"{snippet.path.name}:{line}", command, tuple(prints))
            command, prints, line = text.removeprefix("$ "), [], number
        elif command.endswith("\\"):
            command = command.removesuffix("\\") + text.strip()
        else:
            assert command, f"{snippet.path.name}:{number}: printed by no command"
            prints.append(text)
    yield Typed(f"{snippet.path.name}:{line}", command, tuple(prints))


def is_printed(prints: tuple[str, ...], out: str) -> bool:
    """Whether a command printed what a document says that it prints, but for blanks at the ends of lines."""
    pattern = "".join(
        r"(.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in prints
    )
    return re.fullmatch(pattern, re.sub(r" +$", "", out, flags=re.MULTILINE)) is not None


async def run_typed(each: Typed, folder: Path) -> str:
    """Runs it in `folder`, with the commands of `provide`; returns what it printed.

    Raises:
        AssertionError: it failed, or printed something else than the document says.
    """
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "200"}
    env = {**env, "PYTHONPATH": str(ROOT)}
    said = await program("bash", "-e", "-c", each.command, timeout=COMMAND_S, cwd=folder, env=env)
    assert said.status == 0, f"{each.where}: {each.command}\n{said.out}{said.err}"
    assert is_printed(each.prints, said.out), f"{each.where}: {each.command} printed:\n{said.out}{said.err}"
    return said.out


def provide(folder: Path, addresses: Mapping[str, str]) -> None:
    """Makes `slotmesh` and `python` in `folder/bin`: those of the tests; `addresses` has `router` and `controller`."""
    (folder / "bin").mkdir(exist_ok=True)
    cases = f"case $1 in {'|'.join(OF_ROUTERS)}) at={addresses['router']};; *) at={addresses['controller']};; esac"
    run = f'exec "{sys.executable}" -m slotmesh.cli "$@"'
    texts = {
        "python": f'exec "{sys.executable}" "$@"',
        "slotmesh": f'{cases}\ncase $1 in -*) {run};; esac\nexport SLOTMESH_ADDRESS="$at"\n{run}',
    }
    for name, text in texts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (folder / "bin" / name).chmod(0o755)
