"""Hashes of the blocks that a prompt begins with, by which routers know which replica has a prefix of it in its cache.

Invariants: clients, routers and handlers of every release and language compute the same hashes; they are part of the
wire contract. Hash number i covers everything up to the end of block i, so two prompts share it exactly if they share
the first i blocks, and a cache that has block i has all blocks before it. Text and tokens never share a hash. What is
behind the last full block has none.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from operator import index
from struct import pack
from typing import Final

BLOCK_BYTES: Final = 64
"""Of text, in UTF-8: about 16 tokens."""
BLOCK_TOKENS: Final = 16
TOKEN_BYTES: Final = 4
MAX_TOKEN: Final = 2**32 - 1
MAX_PREFIX_BLOCKS: Final = 4_096
"""Of one call."""
_TEXT: Final = b"text"
_TOKENS: Final = b"tokens"


def prefix_blocks(
    prompt: str | bytes | bytearray | memoryview | Iterable[int], most: int = MAX_PREFIX_BLOCKS
) -> tuple[int, ...]:
    """The hashes of the blocks that text, or a sequence of token ids, begins with.

    Block i of text ends behind 64·i bytes of its UTF-8, block i of tokens behind 16·i of them. Its hash is BLAKE2b,
    with a digest of 8 bytes that is read as a big-endian integer, of `text` and these bytes, or of `tokens` and these
    token ids, each as 4 bytes, big-endian. A last block that is not full has none.

    Args:
        prompt: the text, its UTF-8, or token ids of 0 … 2³²-1.
        most: the first blocks that are hashed, 1 … 4,096.

    Raises:
        TypeError: neither text nor integers.
        ValueError: a token id out of range.
    """
    if not 1 <= most <= MAX_PREFIX_BLOCKS:
        raise ValueError(f"most: must be 1 … {MAX_PREFIX_BLOCKS:,}, got {most}")
    if isinstance(prompt, str):
        return blocks_of_text(prompt[: most * BLOCK_BYTES].encode(errors="surrogatepass"), most)
    if isinstance(prompt, bytes | bytearray | memoryview):
        return blocks_of_text(bytes(prompt[: most * BLOCK_BYTES]), most)
    try:
        tokens = [index(each) for each in islice(prompt, most * BLOCK_TOKENS)]
    except TypeError as error:
        raise TypeError(f"a prompt is text, its UTF-8, or token ids, which are integers: {error}") from None
    if wrong := [each for each in tokens if not 0 <= each <= MAX_TOKEN]:
        raise ValueError(f"a token is 0 … {MAX_TOKEN:,}, got {wrong[0]}")
    return blocks_of_tokens(tokens, most)


def blocks_of_text(text: bytes, most: int) -> tuple[int, ...]:
    """Of the UTF-8 of a text, or of the beginning of it."""
    return tuple(_hashes(_TEXT, text, BLOCK_BYTES, most))


def blocks_of_tokens(tokens: Sequence[int], most: int) -> tuple[int, ...]:
    """Of tokens that are in range."""
    used = min(most, len(tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
    return tuple(_hashes(_TOKENS, pack(f">{used}I", *tokens[:used]), BLOCK_TOKENS * TOKEN_BYTES, most))


def _hashes(kind: bytes, data: bytes, size: int, most: int) -> Iterator[int]:
    whole = blake2b(kind, digest_size=8)
    for end in range(size, min(most * size, len(data)) + 1, size):
        whole.update(data[end - size : end])
        yield int.from_bytes(whole.digest(), "big")
