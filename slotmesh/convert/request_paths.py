"""Where a request has what a rule refuses: the path of a document as a path of `google.rpc.BadRequest`.

Rules name a place as a `mesh.yaml` has it (`backends.v1.max_ongoing`), and messages for people keep that. The details
of an rpc name the field of the request that was sent: `mesh.backends[0].max_ongoing`, or `backend.max_ongoing`.
Invariants: a path resolves in the request: names of fields, `[0]` in a repeated field, `["key"]` in a map. It is found
by descriptors, so that a new rpc needs no code here; where a place is not in the request, its nearest enclosing field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from slotmesh.spec.rules import is_name, show
from slotmesh.v1 import mesh_pb2

_MESH: Final = mesh_pb2.Mesh.DESCRIPTOR
_SECTIONS: Final = ("backends", "endpoints", "routes")
"""The sections of a document. The field `name` names a resource."""
_IN_ENDPOINTS: Final = {"traffic": "traffic.weights", "shadows": "traffic.shadows"}
"""Where the message of an endpoint has what a document has under another name."""
_INDEX: Final = re.compile(r"\[(\d+)\]")
_MAX_KEY_CHARS: Final = 80
"""A longer key of a map is not repeated: the path ends at the map."""


def request_path(request: Message, path: str) -> str:
    """The path in this request. Empty if no field of the request is at fault."""
    section, _, rest = path.partition(".")
    if section in _SECTIONS:
        found = _in_resources(request, section, rest)
    else:
        found = _below(request, path)
    return found or next((prefix for prefix, _, _ in _holders(request)), "")


def _in_resources(request: Message, section: str, rest: str) -> str:
    kind = _MESH.fields_by_name[section].message_type
    for prefix, field, held in _holders(request):
        if field.message_type is _MESH:
            prefix, held = f"{prefix}.{section}", getattr(held, section)  # noqa: PLW2901 - the same field, further in
        elif field.message_type is not kind:
            continue
        elif not field.is_repeated:
            held = [held]  # noqa: PLW2901 - one resource
        if not rest:
            return prefix
        named = {show(it.name): at for at, it in reversed([*enumerate(held)])}
        if (name := _first_step(rest, named)) is not None:
            here = prefix if field.message_type is kind and not field.is_repeated else f"{prefix}[{named[name]}]"
            resource = held[named[name]]
            inside = _inside(section, rest, name) or ("" if is_name(resource.name) else "name")
            return ".".join(filter(None, (here, _below(resource, inside))))
    return _of_named_resource(request, section, rest)


def _holders(request: Message) -> Iterator[tuple[str, Any, Any]]:
    """The fields of a request that have resources: name, field, and value."""
    resources = {_MESH, *(each.message_type for each in _MESH.fields)}
    for field in request.DESCRIPTOR.fields:
        if field.message_type in resources:
            yield field.name, field, getattr(request, field.name)


def _of_named_resource(request: Message, section: str, rest: str) -> str:
    """In a request that has the name of the resource, and maybe some of its fields."""
    named = {
        show(value): field.name
        for field, value in reversed(request.ListFields())
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated
    }
    if (name := _first_step(rest, named)) is None:
        return ""
    inside = _inside(section, rest, name)
    return _below(request, inside) or _below(request, inside.removeprefix("traffic.")) or named[name]


def _inside(section: str, rest: str, name: str) -> str:
    """The path behind the name of the resource."""
    inside = rest[len(name) :].removeprefix(".")
    first, dot, more = inside.partition(".")
    return f"{_IN_ENDPOINTS.get(first, first)}{dot}{more}" if section == "endpoints" else inside


def _first_step(path: str, names: Iterable[str]) -> str | None:
    """The longest of these names with which the path begins. Names may have dots."""
    fitting = (name for name in names if path.startswith(name) and path[len(name) : len(name) + 1] in ("", ".", "["))
    return max(fitting, key=len, default=None)


def _below(message: Message, path: str) -> str:
    """As much of the path as the message has."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Struct":
        path = f"fields.{path}"
    elif message.DESCRIPTOR.full_name == "google.protobuf.Value":
        path = f"list_value.values{path}" if path.startswith("[") else f"struct_value.{path}"
    field = message.DESCRIPTOR.fields_by_name.get(name := re.split(r"[.\[]", path, maxsplit=1)[0])
    if field is None:
        return ""
    here, rest, inner = name, path[len(name) :], getattr(message, name)
    inner_type = field.message_type
    if inner_type is not None and inner_type.GetOptions().map_entry:
        keys = {show(key): key for key in inner if len(key) <= _MAX_KEY_CHARS}
        if (step := _first_step(rest.removeprefix("."), keys)) is None:
            return here
        here, rest = f"{name}[{json.dumps(keys[step], ensure_ascii=False)}]", rest.removeprefix(".")[len(step) :]
        inner, inner_type = inner[keys[step]], inner_type.fields_by_name["value"].message_type
    elif field.is_repeated:
        if (index := _INDEX.match(rest)) is None or int(index[1]) >= len(inner):
            return here
        here, rest, inner = f"{name}{index[0]}", rest[index.end() :], inner[int(index[1])]
    if inner_type is None or not rest:
        return here
    return ".".join(filter(None, (here, _below(inner, rest.removeprefix(".")))))
