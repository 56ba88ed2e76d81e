"""The cache of the LLM example: what it holds, and what leaves for others."""

from __future__ import annotations

from examples.llm.model import KvCache, state_of, words_of


def test_the_longest_cached_prefix_counts() -> None:
    cache = KvCache(10)
    assert cache.cached([1, 2, 3]) == 0
    assert cache.add([1, 2, 3]) == []
    assert cache.cached([1, 2, 3, 4]) == 3
    assert cache.cached([1, 2, 9, 3]) == 2
    assert cache.cached([2, 3]) == 2


def test_what_was_used_longest_ago_is_evicted_the_end_of_a_prefix_first() -> None:
    cache = KvCache(5)
    cache.add([1, 2, 3])
    assert cache.add([7, 8, 9]) == [3]
    cache.add([1, 2])
    assert cache.add([4]) == [9]
    assert len(cache) == 5


def test_words_follow_from_the_prompt() -> None:
    prompt = "the river runs to the sea"
    words = list(words_of(prompt, state_of(prompt), 20))
    assert words == list(words_of(prompt, state_of(prompt), 20))
    assert set(words) <= set(prompt.split())
    assert words != list(words_of(prompt, state_of("another prompt"), 20))
