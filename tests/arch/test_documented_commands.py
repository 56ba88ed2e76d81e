"""Commands in the docs are commands that there are, with arguments and flags that they take."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from slotmesh.cli.app import app
from tests.arch.sources import ROOT
from tests.support.declared_rpcs import declared_rpcs

DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


def commands(text: str) -> Iterator[str]:
    """Each use of `slotmesh` in a shell session, without what comes before and after it."""
    text = re.sub(r"\\\n\s*", "", text)
    for line in re.findall(r"^\s*\$ (.*)$", text, re.MULTILINE):
        named = re.sub(r"\$\(.*?\)", "replica/NAME", re.sub(r"\$\(slotmesh get .*?\)", "backend/NAME", line))
        bare = re.sub(r"(^|\s)#.*", "", named)
        for part in re.split(r"&&|[;&|>]", bare):
            if part.split()[:1] == ["slotmesh"]:
                yield part.strip()


USED = [(path, command) for path in DOCUMENTS for command in commands(path.read_text("utf-8"))]


def parse(command: str, folder: Path) -> None:
    """Reads a command as the command line does, and does nothing. Raises what it says of a mistake."""
    words, group = shlex.split(command)[1:], get_command(app)
    name = "slotmesh"
    with contextlib.chdir(folder):
        while subcommands := getattr(group, "commands", {}):
            if words and words[0].startswith("-"):
                break
            name, *words = words or ["nothing"]
            assert name in subcommands, f"{name}: no such command"
            group = subcommands[name]
        group.make_context(name, words, help_option_names=["--help", "-h"])


@pytest.mark.parametrize(("path", "command"), USED, ids=[f"{path.name}: {command}" for path, command in USED])
def test_a_command_of_the_docs_is_one(path: Path, command: str, tmp_path: Path) -> None:
    (tmp_path / "before.json").touch()  # what one example saves, and the next one reads
    with contextlib.suppress(typer.Exit):  # --version, --help
        parse(command, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        "slotmesh stats",
        "slotmesh scale b",
        "slotmesh drain r --waiting",
        "slotmesh rollout statu b",
        "slotmesh scale b x",
    ],
)
def test_a_mistake_is_found(wrong: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, typer.BadParameter.__bases__[0])):
        parse(wrong, tmp_path)


def test_uses_are_found() -> None:
    text = (
        "$ slotmesh status | grep x && slotmesh get > f  # why\n$ slotmesh drain \\\n  $(slotmesh status)\nslotmesh\n"
    )
    assert list(commands(text)) == ["slotmesh status", "slotmesh get", "slotmesh drain replica/NAME"]
    assert len(USED) > 50


@pytest.mark.parametrize("path", DOCUMENTS, ids=[f"{path.parent.name}/{path.name}" for path in DOCUMENTS])
def test_rpcs_of_the_docs_are_those_that_there_are(path: Path) -> None:
    rpcs = {f"{it.containing_service.full_name}/{it.name}" for it in declared_rpcs()}
    assert set(re.findall(r"slotmesh\.v1\.\w+Service/\w+", path.read_text("utf-8"))) <= rpcs
