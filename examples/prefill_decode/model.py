"""A language model in miniature, in the two phases that a real one has.

*Prefill* reads the prompt once and leaves a cache, large and slow to move; *decode* takes the cache and speaks word by
word. What it says follows from the prompt alone, so anybody can check it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

BYTES_PER_WORD = 16 * 1024
"""Of the cache, for each word of the prompt. A real model has more."""

_DIGEST_BYTES = 16


def prefill(prompt: str) -> bytes:
    """The cache of a prompt: what each word adds, given all before it."""
    state, parts = b"", []
    for word in prompt.split():
        state = blake2b(state + word.encode(), digest_size=_DIGEST_BYTES).digest()
        parts.append(state * (BYTES_PER_WORD // _DIGEST_BYTES))
    return b"".join(parts)


def decode(prompt: str, cache: bytes, count: int) -> Iterator[str]:
    """As many words as are asked for: each one of the prompt's, chosen by the cache."""
    words, state = prompt.split(), cache[-_DIGEST_BYTES:]
    for _ in range(count):
        state = blake2b(state, digest_size=_DIGEST_BYTES).digest()
        yield words[int.from_bytes(state[:4], "big") % len(words)]
