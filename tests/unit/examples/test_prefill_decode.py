"""The model in miniature: what it says follows from the prompt, and needs the whole of it."""

from __future__ import annotations

from examples.prefill_decode.model import BYTES_PER_WORD, decode, prefill

PROMPT = "the river runs to the sea"


def test_words_follow_from_the_prompt() -> None:
    words = list(decode(PROMPT, prefill(PROMPT), 20))
    assert len(words) == 20
    assert set(words) <= set(PROMPT.split())
    assert words == list(decode(PROMPT, prefill(PROMPT), 20))


def test_another_cache_says_something_else() -> None:
    other = prefill("a river runs to the sea")
    assert list(decode(PROMPT, other, 20)) != list(decode(PROMPT, prefill(PROMPT), 20))


def test_the_cache_grows_with_the_prompt() -> None:
    assert len(prefill(PROMPT)) == 6 * BYTES_PER_WORD
