"""Console snippets of documents: commands behind `$ `, each with the output that the document shows.

Invariants: `…` in shown output stands for some characters of a line, and alone on a line for any number of lines;
everything else is meant literally.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.support.snippets import Snippet

ANYTHING: Final = "…"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a document, as a shell takes it."""

    place: str
    """Document and line."""
    text: str
    shown: str
    """The output that the document has; empty where it has none."""

    def explains(self, output: str) -> bool:
        """Whether this is the output that the document shows."""
        return _matches(_lines(self.shown), _lines(output))


def commands_of(snippet: Snippet) -> Iterator[Command]:
    """The commands of a console snippet. One goes on where a line ends in a backslash or a quote is open.

    A blank line ends the output of one.
    """
    lines = snippet.text.splitlines()
    at = 0
    while at < len(lines):
        first, line = at, lines[at]
        at += 1
        if not line.startswith("$ "):
            assert not line, f"{snippet.path.name}:{snippet.line + first}: output of no command"
            continue
        text = line.removeprefix("$ ")
        while text.endswith("\\") or text.count("'") % 2:
            text += f"\n{lines[at]}"
            at += 1
        shown = []
        while at < len(lines) and lines[at] and not lines[at].startswith("$ "):
            shown.append(lines[at])
            at += 1
        yield Command(f"{snippet.path.name}:{snippet.line + first}", text, "\n".join(shown))


def _lines(text: str) -> list[str]:
    """As a document can show them: without blank lines, and without blanks at the ends of lines."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _matches(shown: list[str], lines: list[str]) -> bool:
    blocks: list[list[re.Pattern[str]]] = [[]]
    for line in shown:
        if line.strip() == ANYTHING:
            blocks.append([])
        else:
            blocks[-1].append(re.compile(".*".join(map(re.escape, line.split(ANYTHING)))))
    first, *others = blocks
    if not others:
        return len(lines) == len(first) and _stands_at(first, lines, 0)
    *between, last = others
    at, end = len(first), len(lines) - len(last)
    if at > end or not _stands_at(first, lines, 0) or not _stands_at(last, lines, end):
        return False
    for block in between:
        found = next((each for each in range(at, end - len(block) + 1) if _stands_at(block, lines, each)), None)
        if found is None:
            return False
        at = found + len(block)
    return True


def _stands_at(block: list[re.Pattern[str]], lines: list[str], at: int) -> bool:
    return all(pattern.fullmatch(line) for pattern, line in zip(block, lines[at : at + len(block)], strict=True))
