"""Paths of `google.rpc.BadRequest` are read as a client reads them, and checked against the request that was sent."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from slotmesh import status
from slotmesh.server import guards

_STEP = re.compile(r'\.?(?P<name>[a-z][a-z0-9_]*)(?:\[(?P<index>\d+)\]|\[(?P<key>"(?:[^"\\]|\\.)*")\])?')


def wrong_path(sent: Message | Descriptor, path: str) -> str:
    """Why the request has no such path; empty if it has. A type alone has any index and any key."""
    descriptor: Any = sent if isinstance(sent, Descriptor) else sent.DESCRIPTOR
    value = None if isinstance(sent, Descriptor) else sent
    at = 0
    try:
        while at < len(path) or not path:
            step = _STEP.match(path, at)
            if step is None or (at > 0) != step[0].startswith("."):
                raise ValueError(f"{path[at:]!r} is no step")
            descriptor, value = _inside(descriptor, value, step)
            at = step.end()
    except (ValueError, LookupError) as error:
        return str(error)
    return ""


def _inside(descriptor: Any, value: Message | None, step: re.Match[str]) -> tuple[Any, Message | None]:
    """Where a step leads."""
    if descriptor is None:
        raise ValueError(f"{step[0]} is no field of a value that is no message")
    if (field := descriptor.fields_by_name.get(step["name"])) is None:
        raise ValueError(f"{descriptor.full_name} has no field {step['name']}")
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    is_list = field.is_repeated and not is_map
    inner: Any = None if value is None else getattr(value, field.name)
    index, key = step["index"], step["key"]
    if (index is not None and not is_list) or (key is not None and not is_map):
        raise ValueError(f"{step[0]}: {field.name} is {'a map' if is_map else 'a list' if is_list else 'one value'}")
    if field.is_repeated and index is None and key is None and step.end() < len(step.string):
        raise ValueError(f"{field.name} needs an index or a key")
    if index is not None or key is not None:
        inner = None if inner is None else inner[int(index)] if is_list else dict(inner)[json.loads(key)]
    inside = field.message_type.fields_by_name["value"].message_type if is_map else field.message_type
    return inside, inner if isinstance(inner, Message) else None


def violated_fields(sent: Any) -> Iterator[str]:
    """The fields in the details of a status."""
    for detail in sent.details:
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad_request = error_details_pb2.BadRequest()
            detail.Unpack(bad_request)
            yield from (each.field for each in bad_request.field_violations)


_SENT: ContextVar[Message | Descriptor | None] = ContextVar("request of the rpc that runs", default=None)


@contextmanager
def checked_paths(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every status that a server of this process ends an rpc with: the list has the paths that are wrong."""
    wrong: list[str] = []
    guard, to_status = guards.guard, status.to_status

    def checking_guard(handler: Any, **arguments: Any) -> Any:
        message = getattr(getattr(handler.request_deserializer, "__self__", None), "DESCRIPTOR", None)
        return _remembering(guard(_remembering(handler, None), **arguments), message)

    def checking_status(failure: Any, *arguments: Any, **keywords: Any) -> Any:
        made = to_status(failure, *arguments, **keywords)
        if (sent := _SENT.get()) is not None:
            kind = sent.full_name if isinstance(sent, Descriptor) else sent.DESCRIPTOR.full_name
            if not kind.startswith("slotmesh.internal."):
                found = ((path, wrong_path(sent, path)) for path in violated_fields(made))
                wrong.extend(f"{kind}: {path!r}: {why}" for path, why in found if why)
        return made

    patch.setattr(guards, "guard", checking_guard)
    patch.setattr(status, "to_status", checking_status)
    yield wrong


def _remembering(handler: Any, message: Descriptor | None) -> Any:
    """The handler, which remembers this type of requests; None: the request itself, of an rpc that has one."""
    behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    def remember(request: Any) -> None:
        if message is not None or isinstance(request, Message):
            _SENT.set(message or request)

    if inspect.isasyncgenfunction(behavior):

        @functools.wraps(behavior)
        async def remembered(request: Any, context: Any) -> Any:
            remember(request)
            async for response in behavior(request, context):
                yield response
    else:

        @functools.wraps(behavior)
        async def remembered(request: Any, context: Any) -> Any:
            remember(request)
            return await behavior(request, context)

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = kinds[handler.request_streaming, handler.response_streaming]
    return make(remembered, handler.request_deserializer, handler.response_serializer)
