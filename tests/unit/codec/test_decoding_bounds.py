"""How much is decoded at once: counted as a decoder would, whatever the text looks like."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.codec import decoding_bounds
from slotmesh.codec.decoding_bounds import (
    MAX_DECODED_BYTES,
    MAX_DECODED_VALUES,
    TooMuchToDecode,
    check_json,
    check_msgpack,
)

TEXTS = st.text(max_size=4) | st.text(',[{"\\\\', max_size=6)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | TEXTS | st.just("x" * 300) | st.just("x" * 70_000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=12,
)
BINARY = st.sampled_from(
    [b"", b"x" * 300, b"x" * 70_000, *(msgspec.msgpack.Ext(5, bytes(n)) for n in (1, 2, 4, 8, 16, 3, 300))]
)


def beginnings(value: Any) -> int:
    """Lists, objects, and the entries of each behind its first, in JSON."""
    if isinstance(value, dict):
        return max(1, len(value)) + sum(map(beginnings, value.values()))
    return max(1, len(value)) + sum(map(beginnings, value)) if isinstance(value, list) else 0


def values_in(value: Any) -> int:
    """Heads in msgpack."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(values_in, value.values()))
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


def is_let_in(check: Callable[[bytes], None], text: bytes, most: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding_bounds, "MAX_DECODED_VALUES", most)
        try:
            check(text)
        except TooMuchToDecode:
            return False
    return True


@given(value=VALUES)
def test_json_is_let_in_up_to_the_bound_and_no_further(value: Any) -> None:
    text, count = msgspec.json.encode(value), beginnings(value)
    assert is_let_in(check_json, text, count)
    assert not count or not is_let_in(check_json, text, count - 1)


@given(value=VALUES | st.lists(BINARY, max_size=4))
def test_msgpack_is_let_in_up_to_the_bound_and_no_further(value: Any) -> None:
    payload, count = msgspec.msgpack.encode(value), values_in(value)
    assert is_let_in(check_msgpack, payload, count)
    assert not is_let_in(check_msgpack, payload, count - 1)


@pytest.mark.parametrize("entries", [15, 16, 70_000])
def test_msgpack_with_heads_of_all_widths(entries: int) -> None:
    for value in ([1] * entries, dict.fromkeys(range(entries)), [1.5] * entries, ["x" * entries]):
        count = 1 + (2 * len(value) if isinstance(value, dict) else len(value))
        payload = msgspec.msgpack.encode(value)
        assert is_let_in(check_msgpack, payload, count)
        assert not is_let_in(check_msgpack, payload, count - 1)


@given(noise=st.binary(max_size=64), most=st.integers(0, 8))
def test_noise_harms_nobody(noise: bytes, most: int) -> None:
    for check in (check_json, check_msgpack):
        is_let_in(check, noise, most)


@pytest.mark.parametrize("check", [check_json, check_msgpack])
def test_what_is_too_long_is_not_looked_at(check: Callable[[bytes], None]) -> None:
    class Unread(bytes):
        count = __getitem__ = property(lambda _: pytest.fail("was looked at"))

    with pytest.raises(TooMuchToDecode, match="at most 2,097,152 bytes, got 2,097,153"):
        check(Unread(MAX_DECODED_BYTES + 1))


def test_a_second_look_cuts_no_more_strings_than_there_may_be() -> None:
    class Strings(bytes):
        split = property(lambda _: pytest.fail("was cut"))
        replace = lambda self, *_: self  # noqa: E731

    with pytest.raises(TooMuchToDecode):
        check_json(Strings(b'["",%b]' % (b'"",' * 5 * MAX_DECODED_VALUES)))
    with suppress(TooMuchToDecode):
        check_json(b'"' * MAX_DECODED_BYTES)
