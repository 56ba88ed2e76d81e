"""Models of pydantic, and what else only pydantic can check: validated and dumped so that both are inverse.

Purpose: a payload made of a model is one that its class accepts, in every content type, whatever its fields say.
| of a field | in payloads |
|---|---|
| aliases | written by the alias for serialization; read by its own aliases, and by what is written |
| `bytes` | JSON: base64, as everywhere else, unless the model's configuration overrides it; msgpack: bytes |
| computed | written, but for models that forbid or keep other fields, which could not be read again |
| `SecretStr` and its like | read; writing is refused, as pydantic would write asterisks |

Invariants: JSON is read and written in pydantic's mode for JSON, msgpack in that for Python, so strict models are read
as they were written. pydantic is imported for those only who use it. What cannot be inverse is refused at start.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import lru_cache
from typing import Any, Final

import msgspec

_SKIPPED: Final = frozenset({"metadata", "default", "config", "cls", "function", "serialization", "expected"})
"""Parts of a core schema in which there are no schemas of fields."""
_BYTES_IN_JSON: Final = frozenset({"val_json_bytes", "ser_json_bytes"})
_KEEPS_OTHERS: Final = frozenset({"forbid", "allow"})
_MASKS: Final = frozenset({"_serialize_secret", "_serialize_secret_field"})


def is_model(kind: Any) -> bool:
    """Whether this is a class of models, of pydantic or alike, or stands for what pydantic checks."""
    return isinstance(kind, type) and hasattr(kind, "model_validate")


@lru_cache(maxsize=1024)
def by_pydantic(wanted: Any) -> type:
    """A class that stands for an annotation that only pydantic can check, for `codec_of`.

    Raises:
        TypeError: pydantic cannot check it.
    """
    stand_in = StandIn(_name(wanted), (), {"model_validate": None, "slotmesh_wanted": wanted})
    codec_of(stand_in)
    return stand_in


def _name(wanted: Any) -> str:
    name = getattr(wanted, "__name__", None) if isinstance(wanted, type) else None
    return str(name or wanted).replace("typing.", "")


class StandIn(type):
    """Of a class that stands for an annotation: msgspec asks whether what its hook made is one."""

    def __instancecheck__(cls, _instance: object) -> bool:
        return True


@lru_cache(maxsize=1024)
def codec_of(kind: Any) -> ModelCodec:
    """How a class of models is validated and dumped.

    Raises:
        TypeError: it cannot be; the message contains the reason.
    """
    if not hasattr(kind, "__pydantic_core_schema__") and not hasattr(kind, "slotmesh_wanted"):
        return DuckModels(kind)
    return PydanticModels(getattr(kind, "slotmesh_wanted", kind))


def codec_of_value(value: Any) -> ModelCodec | None:
    """How this model is dumped; None if it is none. Raises what `codec_of` does."""
    kind: Any = type(value)
    return codec_of(kind) if is_model(kind) else None


def check_is_written(kind: Any) -> None:
    """Raises TypeError where models of the class can be read, and never written."""
    codec = codec_of(kind)
    if isinstance(codec, PydanticModels):
        codec.check_masks()


class ModelCodec(ABC):
    """Validates and dumps the models of one class."""

    @abstractmethod
    def from_json(self, value: Any) -> Any:
        """A model of a decoded JSON value. Raises ValueError."""

    @abstractmethod
    def from_msgpack(self, value: Any) -> Any:
        """A model of a decoded msgpack value. Raises ValueError."""

    @abstractmethod
    def to_json(self, model: Any, fallback: Callable[[Any], Any]) -> Any:
        """What msgspec encodes in its place. Raises TypeError, ValueError."""

    @abstractmethod
    def to_msgpack(self, model: Any) -> Any:
        """The same for msgpack, and for tensors."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """What JSON it is read from, with the schemas that it names under `$defs`. Raises Exception: there is none."""


class DuckModels(ModelCodec):
    """Classes that have `model_validate` and `model_dump`, and are not of pydantic."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def from_json(self, value: Any) -> Any:
        return self._kind.model_validate(value)

    def from_msgpack(self, value: Any) -> Any:
        return self._kind.model_validate(value)

    def to_json(self, model: Any, fallback: Callable[[Any], Any]) -> Any:
        del fallback
        return model.model_dump()

    def to_msgpack(self, model: Any) -> Any:
        return model.model_dump()

    def json_schema(self) -> dict[str, Any]:
        raise TypeError(f"{self._kind.__qualname__} has no schema of JSON")


class PydanticModels(ModelCodec):
    """A class of models, or another annotation, of pydantic."""

    def __init__(self, wanted: Any) -> None:
        pydantic: Any = importlib.import_module("pydantic")
        pydantic_core: Any = importlib.import_module("pydantic_core")
        if wanted is pydantic.BaseModel:
            raise TypeError("BaseModel has no fields: name the model, or take a dict")
        try:
            adapter: Any = pydantic.TypeAdapter(wanted)
            schema: Any = adapter.core_schema
        except pydantic.errors.PydanticUserError as error:
            raise TypeError(f"pydantic cannot check {wanted}: {error.message}") from None
        self._json_schema = adapter.json_schema
        made = Rewriting()
        schema = made.schema_of(schema, {}, is_custom=False)
        self._name = _name(wanted)
        self._is_strict, self._round_trip, self._is_masked = made.is_strict, made.round_trip, made.is_masked
        # The parts of models that exist already would be used as they are.
        self._validator = pydantic_core.SchemaValidator(schema, None, _use_prebuilt=False)
        self._serializer = pydantic_core.SchemaSerializer(schema, None, _use_prebuilt=False)

    def from_json(self, value: Any) -> Any:
        return self._validator.validate_json(msgspec.json.encode(value))

    def from_msgpack(self, value: Any) -> Any:
        try:
            return self._validator.validate_python(value)
        except ValueError:
            if not self._is_strict:
                raise
            try:  # what msgpack has as text or as a list, a strict model takes from JSON only
                return self._validator.validate_json(json.dumps(value, default=_time_as_text))
            except (ValueError, TypeError):
                pass
            raise

    def to_json(self, model: Any, fallback: Callable[[Any], Any]) -> Any:
        self.check_masks()
        return msgspec.Raw(
            self._serializer.to_json(model, by_alias=True, round_trip=self._round_trip, fallback=fallback)
        )

    def to_msgpack(self, model: Any) -> Any:
        self.check_masks()
        return self._serializer.to_python(model, mode="python", by_alias=True, round_trip=self._round_trip)

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = _with_base64(self._json_schema(ref_template="#/$defs/{model}"))
        return schema

    def check_masks(self) -> None:
        """Raises TypeError where pydantic would write something else than the value."""
        if self._is_masked:
            raise TypeError(
                f"{self._name} has a secret, which pydantic writes as asterisks: give the field a serializer "
                "that returns its value, or exclude=True"
            )


@dataclass
class Rewriting:
    """Goes through a core schema, and makes one that reads what it writes."""

    is_strict: bool = field(default=False, init=False)
    round_trip: bool = field(default=False, init=False)
    """Computed fields are left out, and parsed JSON is text again."""
    is_masked: bool = field(default=False, init=False)

    def schema_of(self, node: Any, config: Mapping[str, Any], *, is_custom: bool) -> Any:
        """`config` is that of the model around it; `is_custom`: something around it has a serializer of its own."""
        if isinstance(node, list | tuple):
            return type(node)(self.schema_of(each, config, is_custom=is_custom) for each in node)
        if not isinstance(node, dict):
            return node
        kind = node.get("type")
        config = node.get("config") or config
        written_by = node.get("serialization") or {}
        self._look_at(node, config, written_by)
        is_custom = is_custom or str(written_by.get("type", "")).startswith("function")
        made = {
            name: each if name in _SKIPPED else self.schema_of(each, config, is_custom=is_custom)
            for name, each in node.items()
        }
        if kind in {"model-fields", "typed-dict"}:
            made["fields"] = {name: _readable(name, each) for name, each in made["fields"].items()}
        elif kind == "dataclass-args":
            made["fields"] = [_readable(each["name"], each) for each in made["fields"]]
        elif kind == "bytes" and not is_custom and not _BYTES_IN_JSON & config.keys():
            return _bytes_as_base64(made)
        return made

    def _look_at(self, node: Mapping[str, Any], config: Mapping[str, Any], written_by: Mapping[str, Any]) -> None:
        kind = node.get("type")
        self.is_strict |= node.get("strict") is True or config.get("strict") is True
        others = node.get("extra_behavior") or config.get("extra_fields_behavior")
        self.round_trip |= kind == "json" or bool(node.get("computed_fields") and others in _KEEPS_OTHERS)
        self.is_masked |= getattr(written_by.get("function"), "__name__", "") in _MASKS


def _readable(name: str, field_schema: dict[str, Any]) -> dict[str, Any]:
    """A field that is also read by the name that it is written with."""
    written = field_schema.get("serialization_alias") or name
    alias = field_schema.get("validation_alias")
    if alias is None:
        paths = [[name]]
    elif isinstance(alias, str):
        paths = [[alias]]
    else:
        paths = alias if alias and isinstance(alias[0], list) else [alias]
    if [written] in paths:
        return field_schema
    return {**field_schema, "validation_alias": [*paths, [written]]}


def _bytes_as_base64(schema: dict[str, Any]) -> dict[str, Any]:
    inner = dict(schema)
    outer: dict[str, Any] = {
        "type": "function-before",
        "function": {"type": "with-info", "function": _from_base64},
        "schema": inner,
        "serialization": {"type": "function-plain", "function": _to_base64, "when_used": "json"},
    }
    if "ref" in inner:
        outer["ref"] = inner.pop("ref")
    return outer


def _from_base64(value: Any, info: Any) -> Any:
    if info.mode != "json" or not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected bytes in base64") from None


def _to_base64(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else value


def _with_base64(schema: Any) -> Any:
    """A JSON Schema in which bytes are what they are here."""
    if isinstance(schema, list):
        return list(map(_with_base64, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") in {"binary", "base64url"}:
        return {**{key: each for key, each in schema.items() if key != "format"}, "contentEncoding": "base64"}
    return {key: _with_base64(each) for key, each in schema.items()}


def _time_as_text(value: Any) -> str:
    if isinstance(value, date | time | datetime):
        return value.isoformat()
    raise TypeError
