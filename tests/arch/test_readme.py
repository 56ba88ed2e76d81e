"""README.md says what is true: figures that docs/performance.md has, links that lead somewhere, rpcs that answer."""

from __future__ import annotations

import re

from tests.arch.sources import ROOT
from tests.support.console import commands_of
from tests.support.snippets import snippets_of

README = (ROOT / "README.md").read_text("utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text("utf-8")


def times_bare(load: str) -> int:
    """How many times the bare server's rate, in the table of the one run that is told in full."""
    (row,) = (line for line in PERFORMANCE.splitlines() if line.startswith(f"| {load}"))
    return int(row.split("|")[5])


def test_it_begins_with_what_it_is_for_in_twenty_lines() -> None:
    head, _, _ = README.partition("```")
    lines = head.strip().splitlines()
    assert lines[0] == "# slotmesh"
    assert len(lines) <= 20
    for promise in ("It is for", "You write a class", "It is not for", "docs/performance.md"):
        assert promise in head


def test_it_and_the_architecture_are_short() -> None:
    assert len(README.splitlines()) <= 250
    assert len((ROOT / "docs" / "architecture.md").read_text("utf-8").splitlines()) <= 250


def test_its_ratios_are_those_that_were_measured() -> None:
    flat, measured = " ".join(README.split()), " ".join(PERFORMANCE.split())
    said = re.search(
        r"(\d+) to (\d+) times the calls a second with a future a call, (\d+) to (\d+) times with `map`, "
        r"and (\d+) to (\d+) times where each of 512 keys has one call in flight; "
        r"one call at a time .* has ([\d.]+) of the rate",
        flat,
    )
    runs = re.search(
        r"first two were between (\d+) and (\d+), `map` between (\d+) and (\d+), 512 keys between (\d+) and (\d+)",
        measured,
    )
    assert said is not None
    assert runs is not None
    least, most = [int(each) for each in runs.groups()[::2]], [int(each) for each in runs.groups()[1::2]]
    in_full = [
        max(times_bare("ordered stream: one key"), times_bare("stream without keys")),
        times_bare("`map`: lists of 1,024"),
        times_bare("ordered stream: 512 keys"),
    ]
    assert [int(each) for each in said.groups()[:6:2]] == least
    assert [int(each) for each in said.groups()[1:6:2]] == [max(pair) for pair in zip(most, in_full, strict=True)]
    (single,) = (line for line in PERFORMANCE.splitlines() if line.startswith("| stream, one call at a time"))
    assert said[7] == single.split("|")[5].strip()


def test_its_links_lead_to_files_and_headings() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#([\w-]+))?\)", README):
        path, anchor = target
        assert (ROOT / path).exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


def test_no_rpc_that_has_an_example_is_unimplemented() -> None:
    """README.md says of nothing that it answers UNIMPLEMENTED; each rpc has an example, which tests run."""
    assert "UNIMPLEMENTED" not in README
    for snippet in snippets_of(ROOT / "docs" / "grpcurl.md"):
        if snippet.language == "console":
            assert not any("Unimplemented" in command.shown for command in commands_of(snippet))
