"""Results of handlers that have set a Content-Type of their own."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ingress_service.core.media import JSON, MSGPACK, OCTETS
from ingress_service.core.openapi import DescribedMethod
from ingress_service.core.problems import response_head
from ingress_service.core.raw_results import STEP_BYTES, has_own_type, raw_result

BYTES = {"type": "string", "contentEncoding": "base64"}
TEXT = {"type": "string"}
NULL = {"type": "null"}
ENCODERS = {JSON: msgspec.json.encode, MSGPACK: msgspec.msgpack.encode}


def body(form: str, result: bytes, schema: Any, *, yields: bool = False) -> tuple[bytes, int]:
    """The body, and the number of steps before the last one."""
    method = DescribedMethod(name="m", yields=yields, schema={"result": schema, "$defs": {"Raw": BYTES}})
    steps, count = raw_result(form, result, method), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize(
    ("own", "form", "is_own"),
    [
        ("image/png", JSON, True),
        ("text/html; charset=utf-8", MSGPACK, True),
        ("application/octet-stream", JSON, True),
        ("image/png", OCTETS, False),
        ("application/geo+JSON", JSON, False),
        ("application/json; charset=utf-8", JSON, False),
        ("application/x-ndjson", JSON, True),
        ("application/json-seq", JSON, True),
        ("application/geojson-x; profile=json", JSON, True),
        ("application/vnd.msgpack", MSGPACK, False),
    ],
)
def test_a_type_of_values_is_no_type_of_its_own(own: str, form: str, is_own: bool) -> None:
    assert has_own_type(response_head(200, [("X-A", "b"), ("Content-Type", own)]), form) is is_own
    assert not has_own_type(response_head(200, [("X-A", own)]), form)


@pytest.mark.parametrize("form", [JSON, MSGPACK])
@pytest.mark.parametrize("schema", [BYTES, {"$ref": "#/$defs/Raw"}, {"anyOf": [NULL, BYTES]}])
@pytest.mark.parametrize("size", [0, 1, 2, 3, STEP_BYTES // 4 * 3, STEP_BYTES // 4 * 3 + 1, 2 * STEP_BYTES + 5])
def test_bytes_go_as_they_are(form: str, schema: Any, size: int) -> None:
    value = (b"\x00\xff01" * (size // 4 + 1))[:size]
    made, steps = body(form, ENCODERS[form](value), schema)
    assert made == value
    assert steps == (-(-len(ENCODERS[form](value)[2:]) // STEP_BYTES) if form == JSON else 0)


@pytest.mark.parametrize("form", [JSON, MSGPACK])
@pytest.mark.parametrize("text", ["", '<p>\n"ü"</p>', "YWJj"])
def test_texts_go_as_they_are(form: str, text: str) -> None:
    assert body(form, ENCODERS[form](text), TEXT)[0] == text.encode()
    assert body(form, ENCODERS[form](None), {"anyOf": [TEXT, NULL]})[0] == b""


WORDS = ["plain ", "ü€", "😀", "\\", '"', "\n", "\x01", "\\\\\\"]


@pytest.mark.parametrize("shift", range(14))
@pytest.mark.parametrize("word", [*WORDS, "".join(WORDS)])
def test_large_texts_are_cut_in_no_escape_and_in_no_character(word: str, shift: int) -> None:
    text = "x" * shift + word * (STEP_BYTES // len(word) + 1)
    made, steps = body(JSON, msgspec.json.encode(text), TEXT)
    assert (made == text.encode(), steps > 1) == (True, True)
    assert body(JSON, json.dumps(text).encode(), TEXT)[0] == text.encode()


@pytest.mark.parametrize("form", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, "text"),
        ({"type": "object"}, {"a": 1}),
        ({"anyOf": [BYTES, TEXT]}, "YWJj"),
        (NULL, None),
        (BYTES, [1]),
        (BYTES, "no base64"),
        (TEXT, 5),
    ],
)
def test_all_else_stays_in_the_form_of_its_call(form: str, schema: Any, value: Any) -> None:
    if form == MSGPACK and schema == BYTES:
        value = 7
    result = ENCODERS[form](value)
    assert body(form, result, schema)[0] == result
    assert body(form, result, TEXT, yields=True)[0] == result
