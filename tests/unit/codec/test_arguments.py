from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from google.protobuf import wrappers_pb2

from slotmesh.codec import (
    JSON,
    MSGPACK,
    OCTET_STREAM,
    PROTOBUF,
    ArgumentsDecoder,
    DecodeError,
    EncodeError,
    encode,
    encode_arguments,
    encode_arguments_of_each,
)
from slotmesh.errors import Executed, Reason

if TYPE_CHECKING:
    from nowhere_at_run_time import Hidden  # type: ignore[import-not-found]

STRUCTURED = pytest.mark.parametrize("content_type", [JSON, MSGPACK])


class Image(msgspec.Struct):
    pixels: list[float]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Vague:
    """A class that msgspec does not know."""


class Handler:
    async def one(self, x: int) -> None: ...

    async def unannotated(self, x):  # type: ignore[no-untyped-def]
        ...

    def image(self, image: Image, scale: float = 1.0) -> None: ...

    def point(self, point: Point) -> None: ...

    def keyword_only(self, a: int, *, flag: bool) -> None: ...

    def positional_only(self, a: int, /, b: int = 2) -> None: ...

    def rest(self, a: int, *rest: str) -> None: ...

    def more(self, a: int, **more: float) -> None: ...

    def nothing(self) -> None: ...

    def data(self, data: bytes) -> None: ...

    def buffer(self, data: bytearray) -> None: ...

    def maybe(self, data: bytes | None) -> None: ...

    def message(self, message: wrappers_pb2.StringValue) -> None: ...

    def hidden(self, hidden: Hidden, x: int) -> None: ...

    def bounded(self, x: Annotated[int, msgspec.Meta(ge=0)]) -> None: ...

    def odd_names(self, struct_fields: int, p0: int, self_: int) -> None: ...

    async def classify(self, images: list[Image], scales: list[float]) -> None: ...


def decode(method: str, content_type: str, payload: bytes, *, batched: bool = False) -> Any:
    """What the method would be given: everything by the names of its parameters."""
    decoder = ArgumentsDecoder.for_handler(getattr(Handler(), method), batched=batched)
    args, kwargs = decoder.decode(content_type, payload)
    return args, dict(kwargs)


def refused(method: str, content_type: str, payload: bytes, *, batched: bool = False) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(method, content_type, payload, batched=batched)
    failure = caught.value.failure
    assert (failure.reason, failure.executed) == (Reason.BAD_ARGUMENTS, Executed.NO)
    return failure.message


@STRUCTURED
@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("one", [1], ((1,), {})),
        ("one", {"x": 1}, ((1,), {})),
        ("unannotated", [{"any": [1]}], (({"any": [1]},), {})),
        ("image", [{"pixels": [1, 2]}], ((Image([1.0, 2.0]),), {})),
        ("image", [{"pixels": []}, 2], ((Image([]), 2.0), {})),
        ("image", {"image": {"pixels": []}}, ((Image([]),), {})),
        ("image", {"scale": 3, "image": {"pixels": []}}, ((Image([]), 3.0), {})),
        ("point", [{"x": 1}], ((Point(1),), {})),
        ("keyword_only", {"a": 1, "flag": True}, ((1,), {"flag": True})),
        ("positional_only", [1, 3], ((1, 3), {})),
        ("positional_only", [1], ((1,), {})),
        ("rest", [1, "a", "b"], ((1, "a", "b"), {})),
        ("rest", [1], ((1,), {})),
        ("more", {"a": 1, "b": 2}, ((), {"a": 1, "b": 2.0})),
        ("nothing", [], ((), {})),
        ("nothing", {}, ((), {})),
        ("hidden", ["whatever", 1], (("whatever", 1), {})),
        ("odd_names", {"struct_fields": 1, "p0": 2, "self_": 3}, ((1, 2, 3), {})),
    ],
)
def test_arguments_arrive(content_type: str, method: str, value: Any, expected: Any) -> None:
    assert decode(method, content_type, encode(content_type, value)) == expected


@STRUCTURED
@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("one", ["s"], "args[0]: expected int, got str; it takes one(x)"),
        ("one", {"x": "s"}, "x: expected int, got str"),
        ("one", {"y": 1}, "unknown field y"),
        ("one", {}, "missing required field x"),
        ("one", [], "args: expected array of length 1"),
        ("one", [1, 2], "args: expected array of length 1"),
        ("one", 5, "the top level must be an array of positional arguments or a map of named ones"),
        ("one", "text", "the top level must be"),
        ("one", None, "the top level must be"),
        ("image", [{"pixels": [1, 2, 3, "s"]}], "args[0].pixels[3]: expected float, got str"),
        ("image", [{"pixels": []}, 1.0, 2.0], "args: expected array of at most length 2"),
        ("image", {"image": {"pixels": [True]}}, "image.pixels[0]: expected float, got bool"),
        ("point", [{"y": 1}], "args[0]: object missing required field x"),
        ("keyword_only", [1], "flag: can be given by name only"),
        ("positional_only", {"a": 1}, "a: can be given by position only"),
        ("rest", [], "args: expected at least 1, got 0"),
        ("rest", [1, "a", 2], "args[2]: expected str, got int"),
        ("more", {"a": 1, "b": "s"}, "b: expected float, got str"),
        ("more", {"b": 1}, "missing required field a"),
        ("nothing", [1], "args: expected array of length 0"),
        ("hidden", ["whatever", "s"], "args[1]: expected int, got str"),
        ("bounded", [-1], "args[0]: expected int >= 0"),
    ],
)
def test_wrong_arguments_are_named(content_type: str, method: str, value: Any, message: str) -> None:
    assert message in refused(method, content_type, encode(content_type, value))


@pytest.mark.parametrize("payload", [b"", b" ", b"[1", b"[1]]", b'{"x":', b"\xff"])
def test_malformed_json_is_bad_arguments(payload: bytes) -> None:
    assert refused("one", JSON, payload)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"nonsense", "JSON is malformed: invalid character (byte 1)"),
        (b"{nonsense", "JSON is malformed: expected '\"' (byte 1)"),
        (b"\xef\xbb\xbf[1]", "JSON is malformed: invalid character (byte 0)"),
        (b"[1,", "JSON is malformed: it ends at byte 3, before it is complete"),
        (b'{"x": 1', "JSON is malformed: it ends at byte 7, before it is complete"),
        (b'"text', "JSON is malformed: it ends at byte 5, before it is complete"),
        (rb'["\ud800"]', "JSON is malformed: unexpected end of escaped utf-16 surrogate pair (byte 2)"),
        (rb'["\uDBFF", 1]', "JSON is malformed: unexpected end of escaped utf-16 surrogate pair (byte 2)"),
        (rb'["\ud800', "JSON is malformed: it ends at byte 8, before it is complete"),
        (rb'["\ud800\udc', "JSON is malformed: it ends at byte 12, before it is complete"),
        (b"[1] x", "JSON is malformed: trailing characters"),
        (b"5 5", "JSON is malformed: trailing characters"),
        (b"[01]", "JSON is malformed: invalid number"),
    ],
)
def test_what_is_no_json_is_called_so_and_where(payload: bytes, message: str) -> None:
    assert refused("one", JSON, payload).startswith(message)


@pytest.mark.parametrize("payload", [b"", b"\x91", b"\x91\x01\x02", b"\x81\xa1x", b"\xc1"])
def test_malformed_msgpack_is_bad_arguments(payload: bytes) -> None:
    assert refused("one", MSGPACK, payload)


def test_white_space_before_json_is_fine() -> None:
    assert decode("one", JSON, b" \n\t[1]") == ((1,), {})


def test_every_size_of_msgpack_header_is_understood() -> None:
    for count in (0, 1, 15, 16, 70_000):
        assert decode("rest", MSGPACK, encode(MSGPACK, [1, *["s"] * count]))[0][0] == 1
        assert len(decode("more", MSGPACK, encode(MSGPACK, {"a": 1, **{f"k{i}": 0.0 for i in range(count)}}))[1])


def test_octet_stream_is_the_one_argument() -> None:
    assert decode("data", OCTET_STREAM, b"\0") == ((b"\0",), {})
    assert decode("data", "", b"\0") == ((b"\0",), {})
    assert decode("unannotated", OCTET_STREAM, b"\0") == ((b"\0",), {})
    assert decode("maybe", OCTET_STREAM, b"\0") == ((b"\0",), {})
    args, _ = decode("buffer", OCTET_STREAM, b"\0")
    assert type(args[0]) is bytearray


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("one", "args[0]: expected int, got bytes"),
        ("image", "args[0]: expected Image, got bytes"),
        ("nothing", "gives one bytes argument, but it takes nothing()"),
        ("keyword_only", "gives one bytes argument"),
    ],
)
def test_octet_stream_to_a_method_that_takes_no_bytes_is_refused(method: str, message: str) -> None:
    assert message in refused(method, OCTET_STREAM, b"\0")


def test_a_protobuf_message_is_the_one_argument() -> None:
    message = wrappers_pb2.StringValue(value="hello")
    assert decode("message", PROTOBUF, message.SerializeToString()) == ((message,), {})
    assert "not a message of its class" in refused("message", PROTOBUF, b"\xff")
    assert "annotated with a message class" in refused("one", PROTOBUF, b"")


def test_an_unknown_content_type_is_a_bad_request() -> None:
    with pytest.raises(DecodeError) as caught:
        decode("one", "text/plain", b"")
    assert caught.value.failure.reason is Reason.BAD_REQUEST
    assert "content_type" in caught.value.failure.message


@STRUCTURED
def test_a_batch_method_is_described_by_the_elements_of_its_lists(content_type: str) -> None:
    payload = encode(content_type, [{"pixels": [1]}, 2])
    assert decode("classify", content_type, payload, batched=True) == ((Image([1.0]), 2.0), {})
    wrong = encode(content_type, [{"pixels": ["s"]}, 2])
    assert "args[0].pixels[0]: expected float, got str" in refused("classify", content_type, wrong, batched=True)


def test_functions_and_unbound_names_work_as_methods_do() -> None:
    def function(x: int, y: str = "y") -> None: ...

    decoder = ArgumentsDecoder.for_handler(function)
    assert decoder.decode(JSON, b"[1]") == ((1,), {})
    assert decoder.signature.text == "function(x, y='y')"


def test_an_annotation_that_nothing_can_become_is_found_when_the_handler_is_read() -> None:
    def function(x: int, y: set[list[int]] | list[str]) -> None: ...

    with pytest.raises(TypeError, match="the annotation of y"):
        ArgumentsDecoder.for_handler(function)


@pytest.mark.parametrize("wanted", [[int], {"a": int}])
def test_what_has_no_hash_is_an_annotation_that_nothing_can_become(wanted: Any) -> None:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = wanted
    with pytest.raises(TypeError, match="the annotation of x"):
        ArgumentsDecoder.for_handler(function)


def test_a_class_of_their_own_is_refused_by_its_name() -> None:
    def function(x: Vague) -> None: ...

    with pytest.raises(TypeError, match="x: no payload can become a Vague: make it a dataclass"):
        ArgumentsDecoder.for_handler(function)


# -- callers ------------------------------------------------------------------------------------------------------


@STRUCTURED
def test_callers_send_positional_arguments_as_an_array_and_named_ones_as_a_map(content_type: str) -> None:
    assert encode_arguments(content_type, (1, "a"), {}) == encode(content_type, [1, "a"])
    assert encode_arguments(content_type, (), {"x": 1}) == encode(content_type, {"x": 1})
    assert encode_arguments(content_type, (), {}) == encode(content_type, [])
    with pytest.raises(EncodeError, match="name all of them, or none"):
        encode_arguments(content_type, (1,), {"x": 1})


@pytest.mark.parametrize("content_type", [OCTET_STREAM, PROTOBUF])
@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((b"", b""), {}), ((b"",), {"x": 1}), ((), {"x": b""})])
def test_bytes_and_messages_travel_alone(content_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(EncodeError, match="exactly one positional argument"):
        encode_arguments(content_type, args, kwargs)


@pytest.mark.parametrize("content_type", [OCTET_STREAM, PROTOBUF])
def test_none_is_no_argument(content_type: str) -> None:
    with pytest.raises(EncodeError, match="cannot carry None"):
        encode_arguments(content_type, (None,), {})
    with pytest.raises(EncodeError, match="cannot carry None"):
        encode_arguments_of_each(content_type, [[None]])


@pytest.mark.parametrize(
    ("content_type", "items"),
    [
        (OCTET_STREAM, [b"a", bytearray(b"b")]),
        (OCTET_STREAM, [b"a", b"b"]),
        (MSGPACK, [1, None]),
        (JSON, [1, "x"]),
        (PROTOBUF, [wrappers_pb2.StringValue(value="a")]),
    ],
)
@pytest.mark.parametrize("make", [list, tuple, iter])
def test_many_are_encoded_as_one_by_one(content_type: str, items: list[Any], make: Callable[[Any], Any]) -> None:
    expected = [encode_arguments(content_type, (item,), {}) for item in items]
    assert encode_arguments_of_each(content_type, [make(items)]) == expected


@STRUCTURED
def test_columns_are_the_positional_arguments(content_type: str) -> None:
    rows = encode_arguments_of_each(content_type, [[1, 2], iter("ab")])
    assert rows == [encode(content_type, [1, "a"]), encode(content_type, [2, "b"])]
    with pytest.raises(ValueError, match="differ in length: 2, 1"):
        encode_arguments_of_each(content_type, [[1, 2], [1]])


def test_columns_are_not_for_bytes() -> None:
    with pytest.raises(EncodeError, match="exactly one positional argument, got 2"):
        encode_arguments_of_each(OCTET_STREAM, [[b"a"], [b"b"]])
