"""Which form the call of a body of bytes has, and its payload."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ingress_service.core.media import JSON, MSGPACK, OCTETS, Forms, Framing
from ingress_service.core.openapi import DescribedMethod
from ingress_service.core.problems import RequestRefusal
from ingress_service.core.uploads import STEP_BYTES, upload_bytes, upload_forms, upload_payload
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES

BYTES = {"type": "string", "contentEncoding": "base64"}
ASKED = Forms(OCTETS, JSON, Framing.WHOLE)
OPEN = Forms(OCTETS, JSON, Framing.WHOLE, or_octets=True)
PLAIN = Forms(OCTETS, OCTETS, Framing.WHOLE)


def method(result: Any, *, argument: Any = None, yields: bool = False, **more: Any) -> DescribedMethod:
    """`more`: of the schema."""
    arguments = {"type": "object", "properties": {"image": argument or BYTES, "n": {"type": "integer"}}}
    definitions = {"Label": {"type": "object"}, "Raw": {"anyOf": [BYTES, {"type": "null"}]}}
    schema = {"arguments": arguments, "result": result, "$defs": definitions, **more}
    return DescribedMethod(name="m", yields=yields, schema=schema)


SECOND = {"type": "object", "properties": {"n": {"type": "integer"}, "image": BYTES}}
NAMED_ONLY = [{"kind": "keyword_only", "name": "image"}]
AFTER_POSITIONAL = [
    {"kind": "positional_only", "name": "n", "required": False, "schema": {}},
    {"kind": "positional_or_keyword", "name": "image"},
]
BEFORE_NAMED_ONLY = [{"kind": "positional_or_keyword", "name": "image"}, {"kind": "keyword_only", "name": "n"}]


@pytest.mark.parametrize(
    ("known", "forms"),
    [
        (DescribedMethod(name="m"), PLAIN),
        (method({}), PLAIN),
        (method(BYTES), PLAIN),
        (method({"anyOf": [BYTES, {"type": "string"}]}), PLAIN),
        (method({"$ref": "#/$defs/Raw"}), PLAIN),
        (method({"type": "integer"}, argument={"type": "array"}), PLAIN),
        (method(BYTES, parameters=BEFORE_NAMED_ONLY), PLAIN),
        (method(BYTES, parameters=AFTER_POSITIONAL), OPEN),
        (method(BYTES, parameters=NAMED_ONLY), OPEN),
        (method(BYTES, arguments=SECOND), OPEN),
        (method({"type": "integer"}), OPEN),
        (method({"type": "null"}), OPEN),
        (method({"enum": [1, 2]}), OPEN),
        (method({"$ref": "#/$defs/Label"}), OPEN),
        (method(BYTES, yields=True), OPEN),
        (method({"type": "integer"}, argument={"$ref": "#/$defs/Raw"}), OPEN),
    ],
)
def test_bytes_go_unread_where_the_first_argument_takes_them_and_the_method_may_return_bytes(
    known: DescribedMethod, forms: Forms
) -> None:
    assert upload_forms(OPEN, known, has_parameters=False) == forms
    assert upload_forms(OPEN, known, has_parameters=True) == OPEN, "an octet-stream names no arguments"
    assert upload_forms(ASKED, known, has_parameters=False) == ASKED, "nothing else is accepted"


def test_bytes_alone_are_not_accepted_of_a_method_that_returns_none() -> None:
    with pytest.raises(RequestRefusal) as refused:
        upload_forms(PLAIN, method({"type": "integer"}), has_parameters=False)
    assert refused.value.problem.status == 406
    for known in (DescribedMethod(name="m"), method({}), method(BYTES)):
        assert upload_forms(PLAIN, known, has_parameters=False) == PLAIN


def made(form: str, body: bytes, given: dict[str, Any], schemas: Any) -> tuple[bytes, int]:
    """The payload, and in how many steps beside the last one it was made."""
    steps, count = upload_payload(form, body, given, schemas), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("size", [0, 1, 2, 3, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES - 1])
@pytest.mark.parametrize("given", [{}, {"n": 3, "word": 'ü"'}])
def test_the_payload_has_the_body_beside_what_is_given(size: int, given: dict[str, Any]) -> None:
    body = (b"\x00\xff01" * (size // 4 + 1))[:size]
    payload, steps = made(JSON, body, given, {"image": BYTES})
    assert msgspec.json.decode(payload, type=dict[str, Any]) == {
        "image": msgspec.json.decode(msgspec.json.encode(body)),
        **given,
    }
    assert steps == max(0, -(-size // STEP_BYTES) - 1), "a body of one step waits for no other"
    payload, _ = made(MSGPACK, body, given, {"image": BYTES})
    assert msgspec.msgpack.decode(payload) == {"image": body, **given}


def test_the_body_is_the_first_argument_of_bytes_that_nothing_gives() -> None:
    schemas = {"$defs": {"Raw": BYTES}, "n": {"type": "integer"}, "mask": {"$ref": "#/$defs/Raw"}, "image": BYTES}
    assert made(MSGPACK, b"x", {}, schemas)[0] == msgspec.msgpack.encode({"mask": b"x"})
    assert made(MSGPACK, b"x", {"mask": ""}, schemas)[0] == msgspec.msgpack.encode({"image": b"x", "mask": ""})


def test_a_body_that_base64_makes_too_large_is_refused_and_msgpack_carries_it() -> None:
    assert upload_bytes(JSON, 50_331_648, MAX_PAYLOAD_BYTES) == MAX_PAYLOAD_BYTES
    with pytest.raises(RequestRefusal) as refused:
        upload_bytes(JSON, 50_331_649, MAX_PAYLOAD_BYTES)
    problem = refused.value.problem
    assert (problem.status, problem.reason) == (413, "PAYLOAD_TOO_LARGE")
    assert "50,331,649 bytes, 67,108,868 as base64" in problem.detail
    assert "accept application/msgpack" in problem.detail
    assert upload_bytes(MSGPACK, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES) == MAX_PAYLOAD_BYTES


@pytest.mark.parametrize("form", [JSON, MSGPACK])
def test_a_body_that_is_too_large_itself_has_no_other_form(form: str) -> None:
    with pytest.raises(RequestRefusal) as refused:
        upload_bytes(form, 101, 100)
    assert refused.value.problem.detail.endswith("send less")


@pytest.mark.parametrize(
    ("schemas", "given", "way_out"),
    [
        (None, {}, "accept application/octet-stream"),
        ({"n": {"type": "integer"}}, {}, "accept application/octet-stream"),
        ({"image": BYTES}, {"image": ""}, "annotate one as bytes that path and query do not give"),
    ],
)
def test_a_method_without_such_an_argument_is_not_called(schemas: Any, given: dict[str, Any], way_out: str) -> None:
    with pytest.raises(RequestRefusal) as refused:
        made(JSON, b"x", given, schemas)
    assert refused.value.problem.status == 415
    assert refused.value.problem.detail.endswith(way_out)
