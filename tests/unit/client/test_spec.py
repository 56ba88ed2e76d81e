from __future__ import annotations

from typing import Any

import msgspec
import pytest
from google.protobuf import wrappers_pb2

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.codec import MSGPACK, OCTET_STREAM, PROTOBUF, encode


class Label(msgspec.Struct):
    digit: int


def make(method: str = "add", wanted: Any = Any, **options: Any) -> CallSpec:
    return CallSpec("digits", method, ViewOptions(**options), CallQueue(), wanted)


def test_bytes_pass_as_they_are() -> None:
    spec = make(content_type=OCTET_STREAM)
    payload = b"payload"
    assert spec.encode((payload,), {}) is payload
    assert spec.decode is None
    with pytest.raises(TypeError, match="exactly one positional argument"):
        spec.encode((payload, payload), {})
    with pytest.raises(TypeError, match="carries bytes, got str"):
        spec.encode(("text",), {})


def test_results_become_what_is_wanted() -> None:
    decode = make(wanted=Label).decode
    assert decode is not None
    assert decode(encode(MSGPACK, {"digit": 3})) == Label(3)
    with pytest.raises(TypeError, match="never"):
        make(content_type=OCTET_STREAM, wanted=Label)


def test_protobuf_asks_for_the_class_of_its_results_before_anything_is_sent() -> None:
    spec = make(content_type=PROTOBUF)
    with pytest.raises(TypeError, match=r"digits\.add\.returning\(MessageClass\)"):
        spec.encode((wrappers_pb2.StringValue(value="a"),), {})
    with pytest.raises(TypeError, match=r"returning\(MessageClass\)"):
        spec.encode_each(([wrappers_pb2.StringValue(value="a")],))
    typed = make(content_type=PROTOBUF, wanted=wrappers_pb2.StringValue)
    assert typed.decode is not None
    message = wrappers_pb2.StringValue(value="a")
    assert typed.decode(typed.encode((message,), {})) == message
