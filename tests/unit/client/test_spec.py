from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from google.protobuf import wrappers_pb2

from slotmesh.client.runs import CallQueue
from slotmesh.client.spec import CallSpec, ViewOptions, seconds
from slotmesh.codec import MSGPACK, OCTET_STREAM, PROTOBUF, encode
from slotmesh.v1 import call_pb2


class Label(msgspec.Struct):
    digit: int


def make(method: str = "add", wanted: Any = Any, **options: Any) -> CallSpec:
    return CallSpec("digits", method, ViewOptions(**options), CallQueue(), wanted)


def test_options_travel() -> None:
    spec = make(timeout_s=1.5, metadata={"k": "v"}, idempotent=True, ordering_key="key")
    wire = call_pb2.CallOptions(
        method="add", content_type=MSGPACK, ordering_key="key", idempotent=True, metadata={"k": "v"}
    )
    wire.timeout.FromMilliseconds(1500)
    assert spec.wire == wire


def test_without_options_only_method_and_content_type_travel() -> None:
    assert make().wire == call_pb2.CallOptions(method="add", content_type=MSGPACK)


def test_the_handler_itself_travels_without_a_name() -> None:
    assert not make("__call__").wire.method


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), 1e12])
def test_timeouts_that_mean_nothing_are_refused(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        ViewOptions(timeout_s=timeout_s)


def test_unknown_content_types_are_refused() -> None:
    with pytest.raises(ValueError, match="content_type must be one of"):
        ViewOptions(content_type="text/plain")


def test_timeouts_are_seconds_or_timedeltas() -> None:
    assert (seconds(1.5), seconds(timedelta(milliseconds=1500)), seconds(None)) == (1.5, 1.5, None)


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
