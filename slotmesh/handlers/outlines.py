"""The annotations of a method as JSON Schema: what its calls take, and what comes back.

Purpose: replicas tell it to routers, `--describe` prints it; OpenAPI documents are made of it.
Invariants: an annotation that has no schema is left open, and costs the others nothing; what is too long is left out;
nothing of users is executed but what `msgspec` reads of their types.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, Final, get_args, get_origin

import msgspec

from slotmesh.codec.models import codec_of, is_model
from slotmesh.codec.signature import read_signature, resolve_annotation
from slotmesh.codec.standard_types import made_of
from slotmesh.wire.outlines import MethodOutline

MAX_SCHEMA_CHARS: Final = 16 * 1024
"""Of one method."""
_AWAITED: Final = (Awaitable, Coroutine)
_YIELDING: Final = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator, Iterable, Generator)


def outline_of(name: str, function: Callable[..., Any], *, yields: bool, is_batch: bool) -> MethodOutline:
    """Of a function or a bound method. `is_batch`: it is given lists, an entry a call."""
    return MethodOutline(name, yields, _schema(function, yields=yields, is_batch=is_batch))


def _schema(function: Callable[..., Any], *, yields: bool, is_batch: bool) -> str:
    """JSON text; empty where there is nothing to say, or too much."""
    try:
        signature = read_signature(function, batched=is_batch)
    except (TypeError, ValueError):
        return ""
    definitions: dict[str, Any] = {}
    named = [it for it in signature.parameters if it.named]
    arguments = {
        "type": "object",
        "properties": {it.name: _schema_of(it.wanted, definitions) for it in named},
        "required": [it.name for it in named if it.required],
        "additionalProperties": signature.more_named is not None,
    }
    result = _schema_of(result_type(function, yields=yields, is_batch=is_batch), definitions)
    text = json.dumps({"arguments": arguments, "result": result, "$defs": definitions}, separators=(",", ":"))
    return text if len(text) <= MAX_SCHEMA_CHARS else ""


def result_type(function: Callable[..., Any], *, yields: bool, is_batch: bool) -> Any:
    """The annotated type of one result, or one value; Any where it is not known."""
    try:
        annotation = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return Any
    return _given(resolve_annotation(annotation, function), yields=yields, is_batch=is_batch)


def _given(wanted: Any, *, yields: bool, is_batch: bool) -> Any:
    """Of a return annotation: the type of one result, or one value."""
    if get_origin(wanted) in _AWAITED and get_args(wanted):
        wanted = get_args(wanted)[-1]
    for is_wrapped, kinds in ((yields, _YIELDING), (is_batch, (list, Sequence))):
        if is_wrapped:
            arguments = get_args(wanted)
            wanted = arguments[0] if get_origin(wanted) in kinds and arguments else Any
    return wanted


def _schema_of(wanted: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """What `msgspec` makes of it; what it names is put into `definitions`."""
    if wanted is Any:
        return {}
    named: dict[str, Any] = {}

    def schema_of(kind: Any) -> dict[str, Any]:
        """Of a type that msgspec leaves to its hooks."""
        if is_model(kind):
            found = codec_of(kind).json_schema()
            named.update(found.pop("$defs", {}))
            return found
        if (made := made_of(kind)) is not None:
            return schemas(made.base)
        raise NotImplementedError

    def schemas(kind: Any) -> dict[str, Any]:
        (found,), more = msgspec.json.schema_components([kind], schema_hook=schema_of, ref_template="#/$defs/{name}")
        named.update(more)
        return found

    try:
        made = made_of(wanted)
        schema = schemas(wanted if made is None else made.base)
        json.dumps([schema, named])
    except Exception:  # noqa: BLE001 - whatever reading a foreign type raises: it has no schema then
        return {}
    for name, each in named.items():
        if definitions.setdefault(name, each) != each:
            return {}  # two types of one name: say nothing of the second
    return schema
