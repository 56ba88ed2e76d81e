"""CONTRIBUTING.md names what is there: folders, what each folder of tests holds, which files a change touches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.arch.sources import ROOT

DOCUMENT = ROOT / "CONTRIBUTING.md"


def section(title: str) -> str:
    """What stands under this heading, up to the next one."""
    _, _, rest = DOCUMENT.read_text("utf-8").partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def folders_in(folder: Path) -> set[str]:
    """Those that are part of the repository, not what tools leave there: see .gitignore."""
    ignored = set(re.findall(r"^/?([\w.-]+)/$", (ROOT / ".gitignore").read_text("utf-8"), re.MULTILINE))
    return {
        each.name
        for each in folder.iterdir()
        if each.is_dir()
        and not each.name.startswith(".")
        and each.name not in ignored
        and any(path.is_file() and "__pycache__" not in path.parts for path in each.rglob("*"))
    }


def named_places() -> Iterator[tuple[list[str], list[str]]]:
    """Yields folders that stand together, and what is named within them."""
    block = section("Where things are").split("```")[1].strip("\n")
    parents: list[str] = []
    for is_within, lines in groupby(block.splitlines(), key=lambda line: line.startswith(" ")):
        names = [name for line in lines for name in re.split(r" {2,}", line.strip())[0].split()]
        if is_within:
            yield parents, names
        else:
            parents = [name.rstrip("/") for name in names]
            yield [""], names


def test_what_is_named_is_there() -> None:
    missing = [
        name
        for parents, names in named_places()
        for name in names
        if not any((ROOT / parent / name).exists() for parent in parents)
    ]
    assert not missing, "take it out of `Where things are`"


def test_what_is_there_is_named() -> None:
    for parents, names in named_places():
        named = {name.split("/")[0] for name in names}
        for parent in parents:
            unnamed = folders_in(ROOT / parent) - named if parent else set()
            assert not unnamed, f"say in `Where things are` what is in {parent}"
    top = {name.split("/")[0] for parents, names in named_places() if parents == [""] for name in names}
    assert folders_in(ROOT) == top, "`Where things are` names each folder of the repository"


def test_the_table_of_tests_names_each_folder() -> None:
    rows = re.findall(r"^\| `tests/(\w+)/` \| \S", section("Tests"), re.MULTILINE)
    assert sorted(rows) == sorted(folders_in(ROOT / "tests"))


def how_tos() -> Iterator[tuple[str, str]]:
    """Yields what each of them is for, and its text."""
    parts = re.split(r"^\*\*(.+?)\*\*", section("How to"), flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def paths_in(text: str) -> list[str]:
    """Files and folders that the text names: they stand in backticks, from the repository's root on."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return [
        span
        for span in spans
        if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", span) and re.search(r"/|\.(py|proto|md)$", span)
    ]


def test_how_tos_name_files_that_are_there() -> None:
    named = [(title, path) for title, text in how_tos() for path in paths_in(text)]
    assert {title for title, _ in named} >= {title for title, text in how_tos() if text.startswith(" (")}
    missing = [f"{title} {path}" for title, path in named if not list(ROOT.glob(path.rstrip("/")))]
    assert not missing, "write where they are now, from the root on"


def test_how_tos_say_that_few_files_are_touched() -> None:
    counts = {
        title: max(map(int, re.findall(r"\d+", count)))
        for title, text in how_tos()
        for count in re.findall(r"^ \((.+?)\)", text)
    }
    most = dict.fromkeys(
        (
            *("setting of a backend", "call option that routers read", "balancer", "metric", "content type", "command"),
            *("header of HTTP", "setting of a process"),
        ),
        4,
    )
    most = {f"Add a {thing}.": number for thing, number in most.items()}
    most |= {"Add an error reason.": 4, "Add an rpc.": 4}
    most |= {"Add a call option that handlers see.": 6, "Add a command with an rpc.": 5}
    assert {title: counts[title] for title in most if counts[title] > most[title]} == {}


def test_it_is_short() -> None:
    assert len(DOCUMENT.read_text("utf-8").splitlines()) <= 200
