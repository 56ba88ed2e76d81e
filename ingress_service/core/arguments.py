"""The arguments of a call: what the body, the path and the query have, as one payload. Pure.

Invariants: a body without path parameters and in the form of the call is passed on as it came, unread: the replica
judges it. What has to be read here is within the bounds of `slotmesh.codec.decoding_bounds`. Texts of path and query
are converted to the types in the method's annotations, as far as those are known; what does not fit stays a text, which
the replica refuses with the argument's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from ingress_service.core.call_options import QUERY_TERMS
from ingress_service.core.media import JSON, MSGPACK, OCTETS, Forms
from ingress_service.core.problems import refusal
from slotmesh.codec.decoding_bounds import TooMuchToDecode, check_json, check_msgpack, json_decoder
from slotmesh.errors import Reason

MAX_PARAMETERS: Final = 256
"""Of a query."""
Schemas = Mapping[str, Any]
"""By the name of an argument: its JSON Schema."""
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_WORDS: Final = {"true": True, "false": False}
_EMPTY: Final = {JSON: b"[]", MSGPACK: b"\x90"}
_CHECKS: Final = {JSON: check_json, MSGPACK: check_msgpack}
_DECODERS: Final = {JSON: json_decoder(Any), MSGPACK: msgspec.msgpack.Decoder().decode}
_BESIDE: Final = "parameters of path or query are added to it: send all arguments in the body"
_MOST_STEPS: Final = 8
"""References that are followed in a schema."""


def read_query(query: bytes) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The parameters that are arguments, and those that are terms of the call. Raises RequestRefusal."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise refusal(400, f"the query is no text in UTF-8, or has more than {MAX_PARAMETERS} parameters") from None
    terms = [it for it in pairs if it[0] in QUERY_TERMS]
    return [it for it in pairs if it[0] not in QUERY_TERMS], terms


def payload_of(
    forms: Forms, body: bytes, path: Mapping[str, str], query: Sequence[tuple[str, str]], schemas: Schemas | None
) -> bytes:
    """The payload of the call. `schemas`: of the method's arguments; None: not known. Raises RequestRefusal."""
    if not path and not query:
        if forms.arguments == forms.call:
            return body or _EMPTY.get(forms.call, b"")
        return _recoded(forms, body)
    if forms.call == OCTETS:
        raise refusal(400, f"parameters of path or query name arguments, and the result is {JSON} then: accept {JSON}")
    named = parameters_of(path, query, schemas)
    if not body:
        return encoded(forms.call, named)
    if forms.arguments != forms.call:
        body = _recoded(forms, body)
    _check(forms.call, body, _BESIDE)
    try:
        decode = msgspec.json.decode if forms.call == JSON else msgspec.msgpack.decode
        given = decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if not isinstance(error, msgspec.ValidationError):
            raise refusal(400, f"the body is no {forms.call}: {error}") from None
        raise refusal(400, "beside parameters of path or query the body must be an object of named arguments") from None
    if both := sorted(given.keys() & named.keys()):
        raise refusal(400, f"{both[0][:80]}: is given by the body, and by path or query")
    return encoded(forms.call, {**given, **named})


def encoded(form: str, value: Any) -> bytes:
    """The value as JSON or msgpack."""
    return msgspec.json.encode(value) if form == JSON else msgspec.msgpack.encode(value)


def _recoded(forms: Forms, body: bytes) -> bytes:
    """The body in the form of the call."""
    if not body:
        return _EMPTY[forms.call]
    _check(forms.arguments, body, f"it becomes {forms.call}: send it as that, or accept {forms.arguments}")
    try:
        return encoded(forms.call, _DECODERS[forms.arguments](body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refusal(400, f"the body is no {forms.arguments}: {error}") from None
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        text = f"the body is no {forms.arguments}, or has what {forms.call} cannot carry"
        raise refusal(400, text) from None


def _check(form: str, body: bytes, why: str) -> None:
    """Whether the body may be read here, which is done because of `why`."""
    try:
        _CHECKS[form](body)
    except TooMuchToDecode as error:
        raise refusal(413, f"the body has {error}, as {why}", Reason.PAYLOAD_TOO_LARGE) from None


def parameters_of(path: Mapping[str, str], query: Sequence[tuple[str, str]], schemas: Schemas | None) -> dict[str, Any]:
    """The named arguments that path and query give; a parameter that is repeated is a list. Raises RequestRefusal."""
    texts: dict[str, list[str]] = {}
    for name, text in query:
        texts.setdefault(name, []).append(text)
    for name, text in path.items():
        if name in texts:
            raise refusal(400, f"{name}: is given by the path, and by the query")
        texts[name] = [text]
    return {name: _value(each, None if schemas is None else schemas.get(name), schemas) for name, each in texts.items()}


def _value(texts: Sequence[str], schema: Any, schemas: Schemas | None) -> Any:
    if schemas is None:
        values = [_guessed(text) for text in texts]
        return values[0] if len(values) == 1 else values
    for kind in (kinds := kinds_of(schema, schemas)):
        if kind.get("type") == "array":
            return [_typed(text, kinds_of(kind.get("items"), schemas)) for text in texts]
    values = [_typed(text, kinds) for text in texts]
    return values[0] if len(values) == 1 else values


def _guessed(text: str) -> Any:
    """Where nothing is known of the annotation: what JSON would read as a number or a boolean is one."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _is_number(text) else text


def _is_number(text: str) -> bool:
    """Whether it is a number that a float can be: JSON has no infinity, and would carry null in its place."""
    return len(text) <= 32 and _NUMBER.fullmatch(text) is not None and isfinite(float(text))


def _typed(text: str, kinds: Sequence[Mapping[str, Any]]) -> Any:
    named = {it.get("type") for it in kinds}
    if "integer" in named and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in named and _is_number(text):
        return float(text)
    if "boolean" in named and text in _WORDS:
        return _WORDS[text]
    if not text and "null" in named and "string" not in named:
        return None
    if kinds and not any("type" in it for it in kinds) and not any("enum" in it or "const" in it for it in kinds):
        return _guessed(text)
    return _chosen(text, kinds)


def _chosen(text: str, kinds: Sequence[Mapping[str, Any]]) -> Any:
    """A member of an enumeration that is no text, by how it is written."""
    choices = [choice for it in kinds for choice in (*it.get("enum", ()), *([it["const"]] if "const" in it else []))]
    return next((it for it in choices if not isinstance(it, str) and str(it) == text), text)


def kinds_of(schema: Any, schemas: Schemas) -> list[Mapping[str, Any]]:
    """The alternatives of a schema, references followed."""
    found: list[Mapping[str, Any]] = []
    pending, steps = [schema], 0
    while pending and steps < 64:
        steps += 1
        each = pending.pop(0)
        if not isinstance(each, Mapping):
            continue
        reference = each.get("$ref")
        if isinstance(reference, str) and steps <= _MOST_STEPS:
            pending.append(schemas.get("$defs", {}).get(reference.rpartition("/")[2]))
        elif isinstance(alternatives := each.get("anyOf"), list):
            pending += alternatives
        else:
            found.append(each)
    return found


def bytes_argument(schemas: Schemas | None, given: Mapping[str, Any]) -> str | None:
    """The first argument that is annotated as bytes and is not `given`; None if there is none."""
    for name, schema in (schemas or {}).items():
        if name != "$defs" and name not in given and any(map(is_bytes, kinds_of(schema, schemas or {}))):
            return name
    return None


def is_bytes(kind: Mapping[str, Any]) -> bool:
    """Whether an alternative of a schema is bytes, which JSON carries in base64."""
    return kind.get("contentEncoding") == "base64"
