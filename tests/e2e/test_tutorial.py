"""docs/tutorial.md, from its first line to its last: files are written, commands are run, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.consoles import Typed, is_printed, provide, run_typed, typed
from tests.support.mesh import ROOT, mesh_run
from tests.support.snippets import Snippet, snippets_of

DOCUMENT: Final = ROOT / "docs" / "tutorial.md"
SNIPPETS: Final = snippets_of(DOCUMENT)
RUN: Final = "slotmesh run mesh.yaml"
INSTALL: Final = "Install"
CANARY: Final = "A canary"
WHO: Final = re.compile(r"Hello (\d+)\nWelcome (\d+)\n")
OWN_ADDRESS: Final = "localhost:7071"


def write(snippet: Snippet, folder: Path, router: str) -> None:
    """A block that begins with the name of its file."""
    name = re.match(r"# (\w+\.(?:py|yaml))\n", snippet.text)
    assert name is not None, f"{snippet}: which file is that?"
    (folder / name[1]).write_text(snippet.text.replace(OWN_ADDRESS, router), "utf-8")


def test_there_is_nothing_that_nobody_runs() -> None:
    assert {it.language for it in SNIPPETS} == {"python", "yaml", "console"}
    assert sum(RUN in it.text for it in SNIPPETS) == 1
    assert DOCUMENT.read_text("utf-8").count("```") == 2 * len(SNIPPETS)


def test_it_installs_as_the_readme_does() -> None:
    (snippet,) = (it for it in SNIPPETS if it.section == INSTALL)
    *_, install, last = typed(snippet)
    assert install.command == "pip install -c constraints.txt ."
    assert install.command in (ROOT / "README.md").read_text("utf-8")
    assert last.command == "slotmesh --version"


def test_what_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", DOCUMENT.read_text("utf-8")):
        file, _, anchor = target.partition("#")
        path = DOCUMENT.parent / file
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", it).lower().replace(" ", "-") for it in headings}, target


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.asyncio
async def test_all_of_it_runs(tmp_path: Path) -> None:
    before = [
        it for it in SNIPPETS[: next(i for i, it in enumerate(SNIPPETS) if RUN in it.text)] if it.section != INSTALL
    ]
    after = SNIPPETS[len(before) + 2 :]
    for snippet in before:
        write(snippet, tmp_path, "")
    env, canaries = {"PYTHONPATH": str(ROOT)}, list[tuple[int, int]]()
    async with mesh_run("mesh.yaml", "--router-port=0", "--controller-port=0", cwd=tmp_path, env=env) as mesh:
        await mesh.wait_ready()
        provide(tmp_path, {"router": mesh.router_address, "controller": mesh.controller_address})
        (install,) = (it for it in SNIPPETS if it.section == INSTALL)
        *_, version = typed(install)
        await run_typed(version, tmp_path)
        for snippet in after:
            if snippet.language != "console":
                write(snippet, tmp_path, mesh.router_address)
                continue
            for each in typed(snippet):
                out = await run_typed(each, tmp_path)
                if snippet.section == CANARY and (who := WHO.fullmatch(out)):
                    canaries.append((int(who[1]), int(who[2])))
    ((old, new),) = canaries
    assert old + new == 1000
    assert 40 < new < 200, "a tenth, give or take six standard deviations"


@pytest.mark.parametrize(
    ("prints", "out", "same"),
    [
        (("a …", "b"), "a 1\nb\n", True),
        (("a …", "b"), "a 1\nc\nb\n", False),
        (("a", "…", "b"), "a\nb\n", True),
        (("a", "…", "b"), "a\nx\ny\nb\n", True),
        (("a", "…", "b"), "a\nx\n", False),
        ((), "", True),
        ((), "a\n", False),
    ],
)
def test_what_is_printed_is_compared(prints: tuple[str, ...], out: str, *, same: bool) -> None:
    assert is_printed(prints, out) is same


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["echo no", "exit 1"])
async def test_a_command_that_does_something_else_fails(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(AssertionError, match="here:1"):
        await run_typed(Typed("here:1", wrong, ("yes",)), tmp_path)
