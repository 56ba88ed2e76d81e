"""What the tests lean on can be leaned on."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.console import Command, commands_of
from tests.support.snippets import Snippet
from tests.support.wait import bounded, wait_until, within


@pytest.mark.asyncio
async def test_a_wait_ends_with_the_first_true_value() -> None:
    found: list[int] = []
    asyncio.get_running_loop().call_later(0.01, found.append, 7)
    assert await wait_until(lambda: found and found[0], what="it was found") == 7


@pytest.mark.asyncio
async def test_a_wait_goes_on_while_nothing_has_come() -> None:
    found: list[int] = []
    asyncio.get_running_loop().call_later(0.01, found.append, 7)
    assert await wait_until(lambda: found[-1]) == 7
    with pytest.raises(AssertionError, match="last: IndexError"):
        await wait_until(lambda: found[1], timeout=0.01)


def identity(value: object) -> object:
    return value


class Moon:
    """What does not become green."""

    def is_green(self) -> bool:
        return False


MOON = Moon()
PAIR: tuple[Callable[[], object], ...] = (lambda: MOON.is_green() or [], lambda: sorted([MOON][:0], key=lambda it: 0))


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (lambda: MOON.is_green() and len("a") > 0, "MOON.is_green() and len('a') > 0 (test_support.py:"),
        (PAIR[0], "MOON.is_green() or [] (test_support.py:"),
        (PAIR[1], "sorted([MOON][:0], key=lambda it: 0) (test_support.py:"),
        (MOON.is_green, "Moon.is_green (test_support.py:"),
        (functools.partial(Moon.is_green, MOON), "Moon.is_green(<tests.unit.test_support.Moon>)"),
        ([].__len__, "list.__len__ of []"),
    ],
)
@pytest.mark.asyncio
async def test_a_wait_says_what_it_waits_for_as_it_is_written(predicate: Callable[[], object], said: str) -> None:
    with pytest.raises(AssertionError) as failed:
        await wait_until(predicate, timeout=0.01)
    text = str(failed.value)
    assert text.startswith(f"not within 0.01 s: {said}")
    assert "<lambda>" not in text
    assert "0x" not in text


@pytest.mark.asyncio
async def test_a_wait_shows_the_last_value_without_addresses_and_bounded() -> None:
    class Empty(list[object]):
        def __bool__(self) -> bool:
            return False

    for value, shown in ((Empty([MOON]), "last: [<tests.unit.test_support.Moon>]"), (Empty("x" * 9_000), "…)")):
        with pytest.raises(AssertionError) as failed:
            await wait_until(functools.partial(identity, value), timeout=0.01, what="it is there")
        assert shown in str(failed.value)
        assert len(str(failed.value)) < 3_000


@pytest.mark.asyncio
async def test_what_is_awaited_has_a_bound() -> None:
    assert await within(asyncio.sleep(0, 7), "a turn") == 7
    with pytest.raises(AssertionError, match=r"^not within 0.01 s: the moon is green$"):
        await within(asyncio.Event().wait(), "the moon is green", timeout=0.01)

    async def times_out() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await within(times_out(), "an end")


@pytest.mark.asyncio
async def test_a_test_that_hangs_says_where() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match=r"hang still waited after 0.01 s") as failed:
        await bounded(hang, 0.01)()
    assert failed.value.__cause__ is not None
    cancelled = failed.value.__cause__.__cause__
    assert isinstance(cancelled, asyncio.CancelledError)
    names = [frame.name for frame in traceback.extract_tb(cancelled.__traceback__)]
    assert names[-2:] == ["hang", "wait"]


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
