"""The Python source of an interface, from the methods that a mesh reports of an endpoint. Pure.

Objects of a schema become dataclasses, or a `TypedDict` if they have fields that may be absent. What has no type that
results can be decoded into, as a union of several objects, becomes `Any` or `dict[str, Any]`.
Invariant: the source is valid Python, whatever names and schemas a mesh reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from typing import Any, Final

from slotmesh.calls.method_outlines import MethodOutline

_PLAIN: Final[Mapping[str, str]] = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "string": "str",
}
_FORMATS: Final[Mapping[str, str]] = {
    "base64": "bytes",
    "date-time": "datetime.datetime",
    "date": "datetime.date",
    "time": "datetime.time",
    "partial-time": "datetime.time",
    "duration": "datetime.timedelta",
    "uuid": "uuid.UUID",
    "decimal": "decimal.Decimal",
}
_OBJECT: Final = "dict[str, Any]"
_TAKEN: Final = frozenset(
    [
        *("Any", "Iterator", "Literal", "NotRequired", "TypedDict", "dataclass", "field", "self", "slotmesh"),
        *("bool", "bytes", "datetime", "decimal", "dict", "float", "int", "list", "set", "str", "tuple", "uuid"),
    ]
)
"""Names that the source uses."""
_OF_INTERFACES: Final = frozenset({"options", "ordered", "reset"})
_MAX_DEPTH: Final = 32
_LONGEST: Final = 80
"""Characters of parameters in one line."""
_DOCSTRING: Final = '"""Its methods; those that yield return an iterator."""'
_HEAD: Final = '''"""The methods of the endpoint {endpoint}, written by `slotmesh stubs`."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations
'''


def interface_source(endpoint: str, outlines: Iterable[MethodOutline]) -> str:
    """The source of a module with one interface."""
    classes = _Classes()
    methods = [_method(classes, each) for each in sorted(outlines, key=lambda it: it.method) if _is_name(each.method)]
    name = "".join(part[:1].upper() + part[1:] for part in _identifier(endpoint).split("_"))
    name = name if _is_name(name) else f"Endpoint{name}"
    while name in _TAKEN or name in classes.sources:
        name = f"{name}Interface"
    parts = [*classes.sources.values(), _class(name, methods)]
    body = "\n\n\n".join(part for part in parts if part)
    return f"{_HEAD.format(endpoint=_identifier(endpoint, '-.'))}\n{_imports(body)}\n\n\n{body}\n"


class _Classes:
    """The classes of objects, by name, as the types of methods refer to them."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        """In the order in which they are written. Empty while its fields are being read."""
        self._schemas: dict[str, object] = {}

    def type_of(self, schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> str:
        """The type of values of a schema; `Any` if it is not known."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return "Any"

        def inner(part: object) -> str:
            return self.type_of(part, definitions, depth + 1)

        name = str(schema.get("title", ""))
        if isinstance(reference := schema.get("$ref"), str):
            name = reference.rpartition("/")[2]
            schema = definitions.get(name, {})
        if isinstance(fields := schema.get("properties"), dict) and fields:
            return self._object(name, schema, definitions, depth)
        if isinstance(values := schema.get("enum"), list) and values:
            are_plain = all(isinstance(value, str | int | None) for value in values)
            return f"Literal[{', '.join(map(_literal, values))}]" if are_plain else "Any"
        if isinstance(choices := schema.get("anyOf"), list) and choices:
            return self._union([inner(choice) for choice in choices])
        if (kind := schema.get("type")) == "array":
            if isinstance(parts := schema.get("prefixItems"), list) and parts:
                return f"tuple[{', '.join(map(inner, parts))}]"
            return f"{'set' if schema.get('uniqueItems') else 'list'}[{inner(schema.get('items'))}]"
        if kind == "object":
            return f"dict[Any, {inner(schema.get('additionalProperties'))}]"  # a schema does not tell the type of keys
        form = "base64" if schema.get("contentEncoding") == "base64" else str(schema.get("format"))
        return _FORMATS.get(form, _PLAIN.get(str(kind), "Any"))

    def _union(self, kinds: list[str]) -> str:
        """One class beside plain types is what results can be decoded into."""
        objects = {kind for kind in kinds if kind in self.sources or kind == _OBJECT}
        if len(objects) > 1:
            kinds = [_OBJECT, *(kind for kind in kinds if kind not in objects)]
        return "Any" if "Any" in kinds else " | ".join(sorted(dict.fromkeys(kinds), key="None".__eq__))

    def _object(self, name: str, schema: dict[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
        """The name of the class of an object."""
        fields = schema["properties"]
        if not _is_name(name) or name in _TAKEN or not all(map(_is_name, fields)):
            return _OBJECT
        if name in self.sources:
            return name if self._schemas[name] == schema else _OBJECT
        self._schemas[name], self.sources[name] = schema, ""
        types = {field: self.type_of(each, definitions, depth + 1) for field, each in fields.items()}
        required = schema.get("required", ())
        defaults = {field: _default(types[field], fields[field]) for field in fields if field not in required}
        del self.sources[name]  # it follows the classes of its fields
        if None in defaults.values():
            lines = [f"{it}: {kind if it in required else f'NotRequired[{kind}]'}" for it, kind in types.items()]
            self.sources[name] = _class_of(f"class {name}(TypedDict):", lines)
        else:
            lines = [f"{it}: {kind}" + (f" = {defaults[it]}" if it in defaults else "") for it, kind in types.items()]
            self.sources[name] = _class_of(f"@dataclass(kw_only=True)\nclass {name}:", lines)
        return name


def _method(classes: _Classes, outline: MethodOutline) -> str:
    try:
        schema = json.loads(outline.schema)
    except ValueError:
        schema = {}
    arguments, definitions = schema.get("arguments"), schema.get("$defs", {})
    result = classes.type_of(schema.get("result"), definitions)
    name = outline.method
    if name in _OF_INTERFACES or (name.endswith("_") and not name.endswith("__")):
        name = f"{name}_"  # a trailing underscore is not part of the name
    returns = f"Iterator[{result}]" if outline.yields else result
    parameters = _parameters(classes, arguments, definitions)
    given = ", ".join(parameters)
    if len(given) > _LONGEST:
        given = "".join(f"\n        {each}," for each in parameters) + "\n    "
    return f"    @slotmesh.method\n    def {name}({given}) -> {returns}: ..."


def _parameters(classes: _Classes, arguments: Any, definitions: Mapping[str, Any]) -> list[str]:
    given = arguments.get("properties", {}) if isinstance(arguments, dict) else None
    if given is None or not all(_is_name(name) and name != "self" for name in given):
        return ["self", "*args: Any", "**kwargs: Any"]
    required = arguments.get("required", ())
    parts, has_default = ["self"], False
    for name, schema in given.items():
        if name in required and has_default and "*" not in parts:
            parts.append("*")
        has_default = has_default or name not in required
        parts.append(f"{name}: {classes.type_of(schema, definitions)}" + ("" if name in required else " = ..."))
    if arguments.get("additionalProperties") is True:
        return ["self", "/", *parts[1:], "**kwargs: Any"]
    return parts


def _default(kind: str, schema: Any) -> str | None:
    """The default of a field; None if it has none, or none that Python's type has."""
    if not isinstance(schema, dict) or "default" not in schema:
        return None
    value = schema["default"]
    if value in ([], {}) and kind.startswith(("list[", "dict[")):
        return f"field(default_factory={kind.partition('[')[0]})"
    if value is None:
        return "None" if kind == "Any" or kind.endswith("None") else None
    is_of_kind = type(value).__name__ in kind.split(" | ") or (kind.startswith("Literal[") and _literal(value) in kind)
    return _literal(value) if is_of_kind and isinstance(value, str | int | float) else None


def _class(name: str, methods: Iterable[str]) -> str:
    head = _class_of(f"class {name}(slotmesh.Interface[slotmesh.ClientT]):", [_DOCSTRING])
    return "\n\n".join([head, *methods])


def _class_of(head: str, fields: Iterable[str]) -> str:
    return "\n".join([head, *(f"    {field}" for field in fields)])


def _imports(body: str) -> str:
    """The imports that the classes need."""
    lines = [f"import {module}" for module in ("datetime", "decimal", "uuid") if f"{module}." in body]
    lines += ["from collections.abc import Iterator"] if "Iterator[" in body else []
    dataclasses = [name for name, use in (("dataclass", "@dataclass("), ("field", "field(default")) if use in body]
    lines += [f"from dataclasses import {', '.join(dataclasses)}"] if dataclasses else []
    uses = (("Any", "Any"), ("Literal", "Literal["), ("NotRequired", "NotRequired["), ("TypedDict", "(TypedDict)"))
    typing = [name for name, use in uses if use in body]
    lines += [f"from typing import {', '.join(typing)}"] if typing else []
    return "\n".join([*lines, *([""] if lines else []), "import slotmesh"])


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) and value.isascii() else repr(value)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)


def _identifier(text: str, more: str = "") -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in more) else "_" for letter in text)
