from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from google.protobuf import wrappers_pb2

from slotmesh.codec import (
    CONTENT_TYPES,
    JSON,
    MSGPACK,
    OCTET_STREAM,
    PROTOBUF,
    DecodeError,
    EncodeError,
    decode,
    decoder,
    decoder_of_each,
    encode,
)
from slotmesh.errors import Executed, Reason


class Label(msgspec.Struct):
    digit: int
    certainty: float = 1.0


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Array:
    """As numpy's: known by what it can do."""

    def tolist(self) -> list[int]:
        return [1, 2]


class Unknown:
    pass


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("value", [None, True, 0, -1, 2**53, 1.5, "", "ü", [], [1, [2]], {}, {"a": [None]}])
def test_values_come_back(content_type: str, value: Any) -> None:
    assert decode(content_type, encode(content_type, value)) == value


def test_bytes_stay_bytes_in_msgpack_and_as_they_are_in_octet_stream() -> None:
    assert decode(MSGPACK, encode(MSGPACK, b"\0\xff")) == b"\0\xff"
    assert encode(OCTET_STREAM, b"\0\xff") == b"\0\xff" == decode(OCTET_STREAM, b"\0\xff")
    assert encode(OCTET_STREAM, bytearray(b"ab")) == b"ab"
    assert encode(OCTET_STREAM, memoryview(b"ab")) == b"ab"


def test_the_empty_content_type_is_octet_stream() -> None:
    assert encode("", b"ab") == b"ab" == decode("", b"ab")


def test_no_result_is_no_bytes() -> None:
    assert encode(OCTET_STREAM, None) == b"" == encode(PROTOBUF, None)


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_structs_dataclasses_and_arrays_are_encoded(content_type: str) -> None:
    assert decode(content_type, encode(content_type, Label(3, 0.5))) == {"digit": 3, "certainty": 0.5}
    assert decode(content_type, encode(content_type, Point(1, 2))) == {"x": 1, "y": 2}
    assert decode(content_type, encode(content_type, Array())) == [1, 2]


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_results_become_the_type_that_is_wanted(content_type: str) -> None:
    payload = encode(content_type, {"digit": 3})
    assert decoder(content_type, Label)(payload) == Label(3)
    assert decoder_of_each(content_type, Label)([payload, payload]) == [Label(3), Label(3)]


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_a_wrong_value_is_named_by_its_path(content_type: str) -> None:
    payload = encode(content_type, [{"digit": 1}, {"digit": "three"}])
    with pytest.raises(DecodeError, match=r"^value\[1\]\.digit: expected int, got str$"):
        decoder(content_type, list[Label])(payload)


def test_protobuf_messages_come_back() -> None:
    payload = encode(PROTOBUF, wrappers_pb2.StringValue(value="hello"))
    assert decoder(PROTOBUF, wrappers_pb2.StringValue)(payload) == wrappers_pb2.StringValue(value="hello")
    with pytest.raises(DecodeError, match="not a message of its class"):
        decoder(PROTOBUF, wrappers_pb2.StringValue)(b"\xff")


@pytest.mark.parametrize("payload", [b"", b"{", b"\xc1", b"\xff\xfe"])
@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_malformed_payloads_are_decode_errors(content_type: str, payload: bytes) -> None:
    if content_type == MSGPACK and payload in {b"{", b"\xff\xfe"}:
        payload = b"\x92\x01"
    with pytest.raises(DecodeError):
        decode(content_type, payload)
    with pytest.raises(DecodeError):
        decoder_of_each(content_type)([payload])


@pytest.mark.parametrize(
    ("content_type", "value", "message"),
    [
        (OCTET_STREAM, "text", "carries bytes, got str; application/json and application/msgpack carry values"),
        (PROTOBUF, b"bytes", "carries a protobuf message, got bytes"),
        (MSGPACK, Unknown(), "Unknown"),
        (JSON, Unknown(), "Unknown"),
        (MSGPACK, 2**64, "cannot carry this"),
        ("text/plain", b"", "content_type: must be one of"),
    ],
)
def test_what_cannot_be_carried_is_a_type_error(content_type: str, value: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message) as caught:
        encode(content_type, value)
    assert isinstance(caught.value, TypeError)


def test_an_unknown_content_type_is_a_bad_request_that_names_the_field() -> None:
    with pytest.raises(DecodeError) as caught:
        decode("text/plain", b"")
    failure = caught.value.failure
    assert (failure.reason, failure.executed) == (Reason.BAD_REQUEST, Executed.NO)
    assert failure.metadata == {"field": "content_type"}
    assert all(content_type in failure.message for content_type in (*CONTENT_TYPES, "text/plain"))


@pytest.mark.parametrize(("content_type", "wanted"), [(OCTET_STREAM, int), (PROTOBUF, Label), (PROTOBUF, Any)])
def test_a_type_that_a_content_type_never_becomes_is_refused(content_type: str, wanted: Any) -> None:
    with pytest.raises(TypeError):
        decoder(content_type, wanted)
