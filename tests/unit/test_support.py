"""What the tests lean on can be leaned on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.console import Command, commands_of
from tests.support.snippets import Snippet
from tests.support.wait import wait_until


@pytest.mark.asyncio
async def test_a_wait_ends_with_the_first_true_value() -> None:
    found: list[int] = []
    asyncio.get_running_loop().call_later(0.01, found.append, 7)
    assert await wait_until(lambda: found and found[0], what="it was found") == 7


@pytest.mark.asyncio
async def test_a_wait_says_what_did_not_happen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.01 s: the moon is green \(last: 0\)"):
        await wait_until(lambda: 0, timeout=0.01, what="the moon is green")


def test_commands_of_a_console_have_their_lines_and_their_output() -> None:
    text = "$ first -d '{\n  }' \\\n  host\nsaid\n  more\n\n$ second\n"
    first, second = commands_of(Snippet(Path("page.md"), 10, "", "console", text))
    assert (first.text, first.shown) == ("first -d '{\n  }' \\\n  host", "said\n  more")
    assert (second.place, second.text, second.shown) == ("page.md:16", "second", "")


@pytest.mark.parametrize(
    ("shown", "output", "explained"),
    [
        ('{\n  "id": "a-…"\n}', '{\n  "id": "a-77"\n}\n', True),
        ('{\n  "id": "a-…"\n}', '{\n  "id": "b-77"\n}\n', False),
        ('{\n  "id": "a-…"\n}', '{\n  "id": "a-77",\n  "more": 1\n}\n', False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nd", True),
        ("a\n…\nd", "a\nd\ne", False),
        ("a\n…\nc\n…", "a\nb\nc", True),
        ("a\n…\nc\nc\n…\ne", "a\nc\nb\nc\nc\ne", True),
        ("a\n…\nc\nc\n…\ne", "a\nc\nb\nc\ne", False),
        ("a\n…\na", "a", False),
        ("", "something", False),
        ("a.c", "abc", False),
    ],
)
def test_shown_output_is_compared_line_by_line_but_for_what_it_leaves_open(
    shown: str, output: str, explained: bool
) -> None:
    assert Command("", "", shown).explains(output) is explained
