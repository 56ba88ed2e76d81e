"""Keys that objects in JSON cannot have are named in the error."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.codec import JSON, MSGPACK, EncodeError, decode, encode


@pytest.mark.parametrize("key", [(1, 2), None, True, frozenset({1})], ids=str)
@pytest.mark.parametrize("is_inside", [False, True], ids=["whole", "inside"])
def test_a_key_that_is_no_text_is_named(key: Any, is_inside: bool) -> None:
    kind = {type(None): "None"}.get(type(key), type(key).__name__)
    value = {key: 1}
    with pytest.raises(EncodeError, match=f"a dict has a key that is a {kind}: keys in JSON are text or numbers"):
        encode(JSON, [1, {"a": value}] if is_inside else value)


@pytest.mark.parametrize("value", [(1, 2), None, True, frozenset({1})], ids=str)
def test_the_same_are_fine_as_values(value: Any) -> None:
    assert decode(JSON, encode(JSON, {"a": value})) == {"a": list(value) if hasattr(value, "__iter__") else value}
    assert encode(MSGPACK, {"a": value})
