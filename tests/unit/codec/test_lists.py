"""Lists of values that were encoded one by one are what the encoder makes of the list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, PROTOBUF, EncodedList, carries_lists, encode

VALUES = st.lists(st.none() | st.integers(-5, 300) | st.text(max_size=3) | st.lists(st.booleans(), max_size=2))


def joined(content_type: str, values: list[object]) -> bytes:
    encoded = EncodedList(content_type)
    for value in values:
        encoded.append(encode(content_type, value))
    return encoded.encoded()


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@settings(deadline=None)
@given(values=VALUES)
def test_a_list_is_as_if_encoded_as_a_whole(content_type: str, values: list[object]) -> None:
    assert joined(content_type, values) == encode(content_type, values)


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_long_lists(content_type: str, count: int) -> None:
    assert joined(content_type, [1] * count) == encode(content_type, [1] * count)


@pytest.mark.parametrize("content_type", ["", OCTET_STREAM, PROTOBUF, "text/plain"])
def test_other_content_types_carry_none(content_type: str) -> None:
    assert not carries_lists(content_type)
    with pytest.raises(ValueError, match="carries no lists"):
        EncodedList(content_type)
