"""In which form arguments come and results go; texts of queries; frames of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ingress_service.core.arguments import _DECODERS, payload_of, read_query
from ingress_service.core.media import FRAMES, JSON, MSGPACK, OCTETS, Forms, Framing, check_untyped, forms_of
from ingress_service.core.problems import RequestRefusal

PLAIN = Forms(JSON, JSON, Framing.WHOLE)


@pytest.mark.parametrize(
    ("content_type", "accept", "forms"),
    [
        (b"", b"", PLAIN),
        (b"application/json; charset=utf-8", b"*/*", PLAIN),
        (b"application/json", b"text/html, application/*;q=0.1", PLAIN),
        (b"application/json", b"application/json;q=0.1, application/msgpack", Forms(JSON, MSGPACK, Framing.WHOLE)),
        (b"application/x-msgpack", b"", Forms(MSGPACK, MSGPACK, Framing.WHOLE)),
        (b"application/octet-stream", b"", Forms(OCTETS, JSON, Framing.WHOLE, or_octets=True)),
        (b"application/octet-stream", b"image/png, */*;q=0.1", Forms(OCTETS, JSON, Framing.WHOLE, or_octets=True)),
        (b"application/octet-stream", b"application/octet-stream", Forms(OCTETS, OCTETS, Framing.WHOLE)),
        (b"application/octet-stream", b"application/json", Forms(OCTETS, JSON, Framing.WHOLE)),
        (b"application/octet-stream", b"application/msgpack, */*", Forms(OCTETS, MSGPACK, Framing.WHOLE, True)),
        (b"application/octet-stream", b"text/event-stream", Forms(OCTETS, JSON, Framing.EVENTS)),
        (b"application/octet-stream", b"application/octet-stream;q=0, */*", Forms(OCTETS, JSON, Framing.WHOLE)),
        (b"application/octet-stream", b"application/octet-stream;q=.1, */*", Forms(OCTETS, JSON, Framing.WHOLE)),
        (b"application/octet-stream", b"application/json, */*;q=0.9", Forms(OCTETS, JSON, Framing.WHOLE)),
        (b"application/octet-stream", b"application/json;q=0, */*", Forms(OCTETS, MSGPACK, Framing.WHOLE, True)),
        (b"application/octet-stream", b"text/event-stream, application/*", Forms(OCTETS, JSON, Framing.EVENTS, True)),
        (b"application/json", b"*/*, application/json;q=0", Forms(JSON, MSGPACK, Framing.WHOLE)),
        (b"application/json", b"application/*, application/json;q=0.1", PLAIN),
        (b"application/msgpack", b"text/event-stream", Forms(MSGPACK, JSON, Framing.EVENTS)),
        (b"", b"application/x-ndjson", Forms(JSON, JSON, Framing.LINES)),
    ],
)
def test_forms_follow_from_both_headers(content_type: bytes, accept: bytes, forms: Forms) -> None:
    assert forms_of(content_type, accept) == forms


@pytest.mark.parametrize(
    ("content_type", "accept", "status"),
    [
        (b"text/plain", b"", 415),
        (b"application/json", b"application/json;q=0", 406),
        (b"application/octet-stream", b"image/png", 406),
        (b"application/json", b"application/octet-stream", 406),
        (b"application/json", b"*/*, application/json;q=0, application/x-msgpack;q=0", 406),
    ],
)
def test_what_cannot_be_had_is_refused(content_type: bytes, accept: bytes, status: int) -> None:
    with pytest.raises(RequestRefusal) as refused:
        forms_of(content_type, accept)
    assert refused.value.problem.status == status


@pytest.mark.parametrize("body", [b"", b"\r\n\t [1]", b'{"a": 1}', b"[", b" " * 100 + b"x"])
def test_a_body_without_a_type_may_be_json(body: bytes) -> None:
    check_untyped(body)


@pytest.mark.parametrize("body", [b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF89a", b"\0", b"a=1", b"5", b'"Ada"'])
def test_a_body_without_a_type_that_is_no_json_is_refused_with_the_header_to_send(body: bytes) -> None:
    with pytest.raises(RequestRefusal) as refused:
        check_untyped(body)
    assert refused.value.problem.status == 415
    assert refused.value.problem.detail.endswith("Content-Type: application/octet-stream")


def test_each_form_that_there_is_is_named_once() -> None:
    with pytest.raises(RequestRefusal) as refused:
        forms_of(b"application/json", b"image/png")
    for form in (JSON, MSGPACK, "text/event-stream", "application/x-ndjson"):
        assert refused.value.problem.detail.count(form) == 1


@pytest.mark.parametrize(
    ("query", "schemas", "payload"),
    [
        (b"a=1&b=x&c=true&d=-1.5e3", None, b'{"a":1,"b":"x","c":true,"d":-1500.0}'),
        (b"a=1", {"a": {"type": "string"}}, b'{"a":"1"}'),
        (b"a=01&b=1", {"a": {"type": "integer"}, "b": {"type": "number"}}, b'{"a":"01","b":1.0}'),
        (b"a=1", {"a": {"type": "array", "items": {"type": "string"}}}, b'{"a":["1"]}'),
        (b"a=1&a=2", {"a": {"type": "integer"}}, b'{"a":[1,2]}'),
        (
            b"a=&b=3",
            {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "b": {"enum": [1, 3]}},
            b'{"a":null,"b":3}',
        ),
        (b"a=2", {"a": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}, b'{"a":2}'),
        (b"a=2", {"a": {"$ref": "#/$defs/N"}, "$defs": {"N": {"$ref": "#/$defs/N"}}}, b'{"a":2}'),
    ],
)
def test_texts_become_what_schemas_say(query: bytes, schemas: Any, payload: bytes) -> None:
    arguments, terms = read_query(query)
    assert (payload_of(PLAIN, b"", {}, arguments, schemas), terms) == (payload, [])


@pytest.mark.parametrize("query", [b"&".join([b"a=1"] * 257), b"a=%ff", b"\xff"])
def test_queries_are_bounded_and_text(query: bytes) -> None:
    with pytest.raises(RequestRefusal):
        read_query(query)


def to_json(value: object) -> bytes:
    return msgspec.json.encode(value)


def to_msgpack(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


@pytest.mark.parametrize("value", [[[]] * 80_001, [1] * 80_001, [{"a": 1}] * 40_000, [["x"]] * 50_000, "x" * 2**21])
@pytest.mark.parametrize(
    ("encode", "forms"),
    [
        (to_json, Forms(JSON, MSGPACK, Framing.WHOLE)),
        (to_msgpack, Forms(MSGPACK, JSON, Framing.WHOLE)),
    ],
)
def test_bodies_that_are_turned_into_another_form_are_bounded(
    value: object, encode: Callable[[object], bytes], forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = encode([value, 1])
    assert payload_of(Forms(forms.arguments, forms.arguments, Framing.WHOLE), body, {}, [], None) is body
    monkeypatch.setitem(_DECODERS, forms.arguments, lambda _: pytest.fail("was decoded"))
    with pytest.raises(RequestRefusal) as refused:
        payload_of(forms, body, {}, [], None)
    problem = refused.value.problem
    assert (problem.status, problem.reason) == (413, "PAYLOAD_TOO_LARGE")
    assert problem.detail.endswith(f"it becomes {forms.call}: send it as that, or accept {forms.arguments}")


def test_bodies_that_parameters_are_added_to_are_bounded() -> None:
    assert payload_of(PLAIN, b'{"a":"%b"}' % (b"," * 100_000), {}, [("b", "1")], None).endswith(b'"b":1}')
    with pytest.raises(RequestRefusal, match="send all arguments in the body"):
        payload_of(PLAIN, b'{"a":[%b]}' % (b"1," * 100_000), {}, [("b", "1")], None)


def test_line_breaks_of_a_value_do_not_break_its_frame() -> None:
    value = b'{\n "a": "x",\r\n "b": 1}'
    assert FRAMES[Framing.EVENTS].value(value) == b'data: {"a":"x","b":1}\n\n'
    assert FRAMES[Framing.LINES].value(value) == b'{"a":"x","b":1}\n'
