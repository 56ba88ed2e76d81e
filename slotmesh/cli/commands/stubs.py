"""`slotmesh stubs`: the interface of an endpoint, as Python source, from the methods that a mesh reports.

Objects of a schema become dataclasses, or a `TypedDict` if they have fields that may be absent. What has no type that
results can be decoded into, as a union of several objects, becomes `Any` or `dict[str, Any]`.
Invariant: the source is valid Python, whatever names and schemas a mesh reports.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from typing import Any, Final

import typer

from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.cli.connection import Peer
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.parameters import ROUTER_ADDRESS, EndpointName, RouterAddress
from slotmesh.v1.router_service_pb2 import DescribeEndpointsRequest

_TIMEOUT_S: Final = 30.0


async def stubs(endpoint: EndpointName, *, address: RouterAddress = ROUTER_ADDRESS) -> None:
    """Print the methods of an endpoint as a Python class, for editors and type checkers.

    It has the names and types that handlers of connected replicas have, and imports nothing of theirs. Give it to
    `mesh.endpoint`. Print it again when the handler has changed.

    Like this:

        slotmesh stubs carts > carts.py
    """
    request = DescribeEndpointsRequest(endpoint=endpoint, with_schemas=True)
    response = await Peer("router", address).ask(request, _TIMEOUT_S)
    if not response.endpoints:
        raise CommandFailed(f"there is no endpoint {endpoint}")
    described = response.endpoints[0]
    known = {each.name: MethodOutline(each.name, each.yields, each.schema) for each in described.described}
    if not described.methods:
        raise CommandFailed(f"no replica of {endpoint} is connected to {address}: its methods are not known")
    outlines = [known.get(name, MethodOutline(name)) for name in described.methods]
    typer.echo(interface_source(endpoint, outlines), nl=False)


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
_EITHER: Final = "positional_or_keyword"
_BY_POSITION: Final = frozenset({"positional_only", _EITHER})
_STARS: Final[Mapping[str, str]] = {"var_positional": "*args", "var_keyword": "**kwargs"}
_KINDS: Final = ("positional_only", _EITHER, "var_positional", "keyword_only", "var_keyword")
"""Of parameters, in their order."""
_WORDS: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?<![\w.])[^\W\d]\w*(?![\w=])""")
"""Literals of text, which stay, and names."""
_MODULES: Final = frozenset({"datetime", "decimal", "uuid", "slotmesh"})
_SOURCES: Final[Mapping[str, str]] = {
    "Iterator": "collections.abc",
    **dict.fromkeys(("dataclass", "field"), "dataclasses"),
    **dict.fromkeys(("Any", "Literal", "NotRequired", "TypedDict"), "typing"),
    **dict.fromkeys(("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple"), "builtins"),
}
"""Where names are imported from."""
_DOCSTRING: Final = '"""Its methods; those that yield return an iterator."""'
_HEAD: Final = '''"""The methods of the endpoint {endpoint}, written by `slotmesh stubs`."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations
'''


def interface_source(endpoint: str, outlines: Iterable[MethodOutline]) -> str:
    """The source of a module with one interface."""
    outlines = sorted((each for each in outlines if _is_name(each.method)), key=lambda it: it.method)
    aliases = _Aliases(outlines)
    classes = _Classes(aliases)
    names = [_name_of(each) for each in outlines]
    scope = _Scope(names, aliases)
    methods = [_method(classes, each, name, scope) for each, name in zip(outlines, names, strict=True)]
    name = "".join(part[:1].upper() + part[1:] for part in _identifier(endpoint).split("_"))
    name = name if _is_name(name) else f"Endpoint{name}"
    while name in _TAKEN or name in classes.sources:
        name = f"{name}Interface"
    of_classes = "\n".join(f"{alias} = {each}" for each, alias in aliases.used.items() if each in classes.sources)
    parts = [*classes.sources.values(), of_classes, _class(name, methods)]
    body = "\n\n\n".join(part for part in parts if part)
    return f"{_HEAD.format(endpoint=_identifier(endpoint, '-.'))}\n{_imports(body, aliases)}\n\n\n{body}\n"


class _Aliases:
    """Second names of what the source uses, for classes that have members of the same name."""

    def __init__(self, outlines: Iterable[MethodOutline]) -> None:
        self._text = " ".join(f'"{each.method}" {each.schema}' for each in outlines)
        self.used: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The alias, which is no name in the outlines."""
        if name not in self.used:
            alias = f"_{name}"
            while json.dumps(alias) in self._text:
                alias += "_"
            self.used[name] = alias
        return self.used[name]


class _Scope:
    """The body of a class, whose members hide what has their names."""

    def __init__(self, members: Iterable[str], aliases: _Aliases) -> None:
        self._members = frozenset(members)
        self._aliases = aliases

    def written(self, code: str) -> str:
        """A type or a default as it is written in the body."""
        return _WORDS.sub(lambda found: self._aliases.of(found[0]) if found[0] in self._members else found[0], code)


class _Classes:
    """The classes of objects, by name, as the types of methods refer to them."""

    def __init__(self, aliases: _Aliases) -> None:
        self._aliases = aliases
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
        written = _Scope(fields, self._aliases).written
        if None in defaults.values():
            kinds = {it: kind if it in required else f"NotRequired[{kind}]" for it, kind in types.items()}
            lines = [f"{it}: {written(kind)}" for it, kind in kinds.items()]
            self.sources[name] = _class_of(f"class {name}(TypedDict):", lines)
        else:
            lines = [
                f"{it}: {written(kind)}" + (f" = {written(str(defaults[it]))}" if it in defaults else "")
                for it, kind in types.items()
            ]
            self.sources[name] = _class_of(f"@dataclass(kw_only=True)\nclass {name}:", lines)
        return name


def _method(classes: _Classes, outline: MethodOutline, name: str, scope: _Scope) -> str:
    try:
        schema = json.loads(outline.schema)
    except ValueError:
        schema = {}
    definitions = schema.get("$defs", {})
    result = classes.type_of(schema.get("result"), definitions)
    returns = scope.written(f"Iterator[{result}]" if outline.yields else result)
    parameters = _parameters(classes, schema, definitions, scope) or [
        "self",
        f"*args: {scope.written('Any')}",
        f"**kwargs: {scope.written('Any')}",
    ]
    given = ", ".join(parameters)
    if len(given) > _LONGEST:
        given = "".join(f"\n        {each}," for each in parameters) + "\n    "
    return f"    @{scope.written('slotmesh')}.method\n    def {name}({given}) -> {returns}: ..."


def _name_of(outline: MethodOutline) -> str:
    name = outline.method
    is_marked = name in _OF_INTERFACES or (name.endswith("_") and not name.endswith("__"))
    return f"{name}_" if is_marked else name  # a trailing underscore is not part of the name


def _parameters(classes: _Classes, schema: Any, definitions: Mapping[str, Any], scope: _Scope) -> list[str]:
    """The parameters of a method; empty if they are not known, or cannot be written."""
    arguments = schema.get("arguments")
    given = arguments.get("properties", {}) if isinstance(arguments, dict) else None
    if given is None:
        return []
    listed = schema.get("parameters") or [{"kind": _EITHER, "name": name} for name in given]
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        return []
    required = arguments.get("required", ())
    parts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    has_default = False
    for each in listed:
        kind, name = str(each.get("kind")), str(each.get("name"))
        wanted = scope.written(classes.type_of(each.get("schema", given.get(name)), definitions))
        if kind in _STARS:
            parts[kind] = [f"{_STARS[kind]}: {wanted}"]
            continue
        if kind not in _KINDS or not _is_name(name) or name == "self":
            return []
        is_required = each.get("required", name in required)
        if is_required and has_default and kind in _BY_POSITION:
            return []
        has_default = has_default or not is_required
        parts[kind].append(f"{name}: {wanted}" + ("" if is_required else " = ..."))
    slash = ["/"] if parts["positional_only"] or parts["var_keyword"] else []
    star = ["*"] if parts["keyword_only"] and not parts["var_positional"] else []
    before, either, more, named, more_named = parts.values()
    names = [part.partition(":")[0].lstrip("*") for part in (*before, *either, *more, *named, *more_named)]
    if len(set(names)) < len(names):
        return []
    return ["self", *before, *slash, *either, *(more or star), *named, *more_named]


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


def _imports(body: str, aliases: _Aliases) -> str:
    """The imports that the classes need."""
    names = (it for it in ast.walk(ast.parse(body)) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load))
    used = {it.id for it in names}
    of_modules = [f"import {module}" for module in sorted(used & _MODULES - {"slotmesh"})]
    imported: dict[str, list[str]] = {}
    for name in sorted(used & _SOURCES.keys()):
        if _SOURCES[name] != "builtins":
            imported.setdefault(_SOURCES[name], []).append(name)
    ours = ["import slotmesh"]
    for name, alias in aliases.used.items():
        if name in _SOURCES:
            imported.setdefault(_SOURCES[name], []).append(f"{name} as {alias}")
        elif name in _MODULES:
            (ours if name == "slotmesh" else of_modules).append(f"import {name} as {alias}")
    lines = [*of_modules, *(f"from {source} import {', '.join(it)}" for source, it in sorted(imported.items()))]
    return "\n".join([*lines, *([""] if lines else []), *ours])


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) and value.isascii() else repr(value)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)


def _identifier(text: str, more: str = "") -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in more) else "_" for letter in text)
