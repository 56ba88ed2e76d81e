"""A language model in miniature: a KV cache that is simulated, and words that follow from the prompt alone.

A real server keeps, for each block of a prompt, what it has computed of it (vLLM's automatic prefix caching, SGLang's
radix cache). A prompt costs the blocks behind the longest prefix that is cached. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16


class KvCache:
    """The blocks of prompts that one replica has computed; those used longest ago leave first."""

    def __init__(self, size: int) -> None:
        """`size`: blocks that it holds at most."""
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def cached(self, blocks: Sequence[int]) -> int:
        """The blocks that a prompt begins with and that are here."""
        return next((at for at, block in enumerate(blocks) if block not in self._blocks), len(blocks))

    def add(self, blocks: Sequence[int]) -> list[int]:
        """The blocks of a prompt were computed, or used. Returns those that were evicted for them."""
        for block in reversed(blocks):  # so that the end of a prefix leaves before its beginning
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        return [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._size)]


def state_of(prompt: str) -> bytes:
    """What prefill leaves for decode."""
    return blake2b(prompt.encode(), digest_size=_DIGEST_BYTES).digest()


def words_of(prompt: str, state: bytes, count: int) -> Iterator[str]:
    """What the model says: each word is one of the prompt's, chosen by the state."""
    words = prompt.split()
    for _ in range(count):
        state = blake2b(state, digest_size=_DIGEST_BYTES).digest()
        yield words[int.from_bytes(state[:4], "big") % len(words)]
