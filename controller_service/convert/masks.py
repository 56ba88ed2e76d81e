"""Parts of a resource that a request changes: `update_mask` of the Apply requests.

Invariants: a path names a field that operators configure, or a field of one that is a message: `autoscale.max`. Any
other path is refused. Fields of the mask that the request does not set get their defaults.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from google.api.field_behavior_pb2 import OUTPUT_ONLY, field_behavior
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from slotmesh.names import did_you_mean
from slotmesh.spec.model import InvalidSpec, SpecViolation
from slotmesh.spec.rules import show

_IDENTITY: Final = frozenset({"name", "etag"})
_PACKAGE: Final = "slotmesh.v1."
"""Messages of which a mask may have single fields: not those of JSON values and durations."""

MessageT = TypeVar("MessageT", bound=Message)


def paths_of(request: Any, kind: Descriptor) -> tuple[str, ...]:
    """The paths of the request's `update_mask`; empty without a mask.

    Raises InvalidSpec for a mask without paths, and with each path that is none of this kind of message.
    """
    paths: tuple[str, ...] = tuple(request.update_mask.paths)
    if not paths and request.HasField("update_mask"):
        raise InvalidSpec([SpecViolation("update_mask", "names no field; leave it out to replace all")])
    if violations := [SpecViolation("update_mask", text) for path in paths for text in _problem(kind, path)]:
        raise InvalidSpec(violations)
    return paths


def _problem(kind: Descriptor, path: str) -> Iterator[str]:
    known: list[str] = [it.name for it in kind.fields if it.name not in _IDENTITY and not _is_output(it)]
    name, dot, rest = path.partition(".")
    inner = None if name not in known else _settable(kind.fields_by_name[name])
    if name not in known:
        yield f"has no field {show(path)!r} to set{did_you_mean(name, known)} (there are {', '.join(known)})"
    elif dot and inner is None:
        yield f"{show(name)!r} is set as a whole: write it without what follows"
    elif dot and inner is not None:
        yield from (f"{name}: {text}" for text in _problem(inner, rest))


def _is_output(field: FieldDescriptor) -> bool:
    """Whether only responses have it."""
    extensions: Any = field.GetOptions().Extensions
    return OUTPUT_ONLY in extensions[field_behavior]


def _settable(field: FieldDescriptor) -> Descriptor | None:
    """The message in a field of which single fields can be set."""
    inner = field.message_type
    is_one = inner is not None and not field.is_repeated and inner.full_name.startswith(_PACKAGE)
    return inner if is_one else None


def with_fields(present: MessageT, wanted: MessageT, paths: Sequence[str]) -> MessageT:
    """The present resource with the fields of these paths as they are in `wanted`. The paths are checked already."""
    merged = type(present)()
    merged.CopyFrom(present)
    for path in paths:
        _set(merged, wanted, path)
    return merged


def _set(target: Any, source: Any, path: str) -> None:
    name, _, rest = path.partition(".")
    if rest:
        getattr(target, name).SetInParent()
        _set(getattr(target, name), getattr(source, name), rest)
        return
    target.ClearField(name)
    only = type(source)()
    only.CopyFrom(source)
    for other in source.DESCRIPTOR.fields:
        if other.name != name:
            only.ClearField(other.name)
    target.MergeFrom(only)
