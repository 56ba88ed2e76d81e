"""Text of the product uses the terms of the field, not those of a private dialect.

Each word has a plain one that says more: "told" is reported, returned or announced; "mistake" is an error or problem;
"nobody" and "somebody" are a named subject (no client, another caller); "so long" is a named duration; "comes again" is
repeated; "knows of" is sees, or has. A reader must understand a sentence alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.arch.sources import GENERATED, ROOT, SHIPPED

WORDS: Final = re.compile(
    r"(?<![a-z])(told|mistakes?)(?![a-z])"  # parts of names, too
    r"|\b(nobody|somebody|everybody|whoever|brought|hears|so many|so long|as long as that|at last|by then)\b"
    r"|\b((has|have|had|was) heard|heard of|knows? of|comes? again|none where|what it takes|for want of|in vain)\b",
    re.IGNORECASE,
)
QUOTED: Final = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
ALLOWED: Final = {
    '_UNKNOWN: Final = "nobody"': "the caller without an identity, in audit logs that users search",
}
"""Lines that have one of them, each with its reason."""


def lines_with_dialect(text: str) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line that has one of the words."""
    for number, line in enumerate(text.splitlines(), 1):
        if WORDS.search(line):
            yield number, line.strip()


def test_no_line_has_one_without_a_reason() -> None:
    paths = [path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    paths += (ROOT / "protos").rglob("*.proto")
    found = [
        f"{path.relative_to(ROOT)}:{number} {line}"
        for path in sorted(paths)
        if path.parent not in GENERATED
        for number, line in lines_with_dialect(path.read_text("utf-8"))
        if line not in ALLOWED
    ]
    assert not found, "\n".join(["write it in plain terms (the head of this file):", *found])


def test_what_is_allowed_is_still_there() -> None:
    texts = [path.read_text("utf-8") for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")]
    assert ALLOWED.keys() <= {line.strip() for text in texts for line in text.splitlines()}


def test_the_docs_have_none() -> None:
    """Names, as that of an alert, and quoted code are not text."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        f"{page.relative_to(ROOT)}:{number} {line}"
        for page in pages
        for number, line in lines_with_dialect(QUOTED.sub(_lines_only, page.read_text("utf-8")))
    ]
    assert not found, "write it in plain terms (the head of this file)"


def _lines_only(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The router told the client.", 1),
        ("Whoever asks, nobody answers", 1),
        ("a mistake\nMistakes", 2),
        ("mistaken, foretold, reported, an error", 0),
        ("def told(): ...", 1),
        ("drain_told_at = _mistake_of(call)", 1),
        ("None where it is unknown; it waits so long", 1),
        ("what it knows; he heard; none, where; so longer", 0),
    ],
)
def test_words_are_found_and_parts_of_words_are_not(text: str, count: int) -> None:
    assert len(list(lines_with_dialect(text))) == count
