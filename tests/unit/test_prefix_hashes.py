"""Hashes of the blocks that a prompt begins with: the vectors of docs/affinity.md, and what follows from them."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from slotmesh import prefix_blocks
from slotmesh.calls.prefix_hashes import MAX_PREFIX_BLOCKS


def hash_of(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [
        ("a" * 130, (0x8CDF941E65C713B8, 0xCA5F76F8B86484F9)),
        ("ä" * 64, (0x66AB7DF4855C963D, 0xFF3C5B6EC0EABAAE)),
        (range(40), (0x2127794912CDEF57, 0xA3A5F63C0E78D33B)),
    ],
)
def test_the_vectors_for_other_languages(prompt: str | range, blocks: tuple[int, ...]) -> None:
    assert prefix_blocks(prompt) == blocks


def test_hash_i_covers_all_blocks_up_to_block_i() -> None:
    text = "".join(chr(97 + number % 26) for number in range(64 * 3 + 5))
    assert prefix_blocks(text) == tuple(hash_of(b"text" + text[: 64 * end].encode()) for end in (1, 2, 3))
    tokens = range(1_000, 1_000 + 16 * 2 + 15)
    packed = b"".join(token.to_bytes(4, "big") for token in tokens)
    assert prefix_blocks(tokens) == tuple(hash_of(b"tokens" + packed[: 64 * end]) for end in (1, 2))


def test_only_full_blocks_count() -> None:
    assert prefix_blocks("a" * 63) == prefix_blocks(range(15)) == prefix_blocks("") == prefix_blocks([]) == ()
    assert len(prefix_blocks("a" * 64)) == len(prefix_blocks(range(16))) == 1


def test_text_is_its_utf8_and_any_iterable_of_integers_is_tokens() -> None:
    assert prefix_blocks("ä" * 96) == prefix_blocks(("ä" * 96).encode())
    assert prefix_blocks(bytearray(b"a" * 130)) == prefix_blocks(memoryview(b"a" * 130)) == prefix_blocks("a" * 130)
    assert prefix_blocks(iter(range(64))) == prefix_blocks(list(range(64))) == prefix_blocks(range(64))
    assert not {*prefix_blocks("\0" * 64)} & {*prefix_blocks([0] * 16)}


def test_of_a_long_prompt_the_first_blocks_count() -> None:
    text = "ab" * 64 * MAX_PREFIX_BLOCKS
    assert len(prefix_blocks(text)) == MAX_PREFIX_BLOCKS
    assert prefix_blocks(text, 3) == prefix_blocks(text)[:3]
    assert prefix_blocks(iter(range(10**9)), 2) == prefix_blocks(range(32))


def test_what_is_no_prompt_is_refused() -> None:
    for wrong in (["a"] * 16, [1.0] * 16, None, 5):
        with pytest.raises(TypeError, match="a prompt is text, its UTF-8, or token ids, which are integers"):
            prefix_blocks(wrong)  # type: ignore[arg-type]
    for token in (-1, 2**32):
        with pytest.raises(ValueError, match=f"got {token}"):
            prefix_blocks([0] * 15 + [token])
    for most in (0, MAX_PREFIX_BLOCKS + 1):
        with pytest.raises(ValueError, match="most: must be 1 … 4,096"):
            prefix_blocks("", most)
