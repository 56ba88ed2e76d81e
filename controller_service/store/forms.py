"""How values stand in JSON documents: a form for each type, and records of the fields of a dataclass.

Invariants: what is read equals what was written, number types included; what cannot be read is a `BadDocument` that
names the place, never a default instead; nor is a field, or a value, of a newer version.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from controller_service.core.partition_owners import Incarnation

Document: TypeAlias = "dict[str, Any]"
"""A JSON object."""
ValueT = TypeVar("ValueT")


class BadDocument(ValueError):
    """A document that this version cannot read; the message names the place and the problem."""


class Form(NamedTuple):
    """How values of one kind stand in documents."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    """Raises BadDocument."""


def within(where: str, read: Callable[..., ValueT], *given: Any, **more: Any) -> ValueT:
    """What is read of a part of a document. The message of a BadDocument begins with the place of that part."""
    try:
        return read(*given, **more)
    except BadDocument as error:
        raise BadDocument(f"{where}: {error}") from error


def _same(value: Any) -> Any:
    return value


def plain(what: str, *kinds: type) -> Form:
    """A value that JSON has, of these types."""

    def read(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise BadDocument(f"{value!r} is no {what}")
        return value

    return Form(_same, read)


def many(form: Form) -> Form:
    """A tuple as a list."""

    def read(values: Any) -> Any:
        if not isinstance(values, list):
            raise BadDocument("must be a list")
        return tuple(map(form.read, values))

    return Form(lambda values: [*map(form.write, values)], read)


def by_name(form: Form) -> Form:
    """A mapping as an object."""
    return Form(
        lambda values: {name: form.write(value) for name, value in values.items()},
        lambda document: {name: within(name, form.read, value) for name, value in object_of(document).items()},
    )


def member_of(kind: type[Enum]) -> Form:
    """A member of an enum, by its name in lower case."""

    def read(name: Any) -> Enum:
        for each in kind:
            if name == each.name.lower():
                return each
        raise BadDocument(f"this version of slotmesh knows no {name!r}")

    return Form(lambda member: member.name.lower(), read)


def _bytes_of(text: Any) -> bytes:
    try:
        return b64decode(str(text), validate=True)
    except binascii.Error as error:
        raise BadDocument(f"must be base64: {error}") from error


def _incarnation(pair: Any) -> Incarnation:
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(it, str) for it in pair):
        raise BadDocument(f"{pair!r} is no incarnation: a replica's id and 32 digits")
    return Incarnation(*pair)


def object_of(document: Any) -> Mapping[str, Any]:
    """A JSON object. Raises BadDocument."""
    if not isinstance(document, dict):
        raise BadDocument("must be a JSON object")
    return document


FORMS: Final[Mapping[Any, Form]] = {
    str: plain("text", str),
    int: plain("integer", int),
    float: plain("number", int, float),
    bool: plain("flag", bool),
    bytes: Form(lambda value: b64encode(value).decode(), _bytes_of),
    Incarnation: Form(list, _incarnation),
}


def _form_of(hint: Any) -> Form:
    """The form of a dataclass's field."""
    if (form := FORMS.get(hint)) is not None:
        return form
    if (inner := get_args(hint)) and get_origin(hint) is tuple:
        return many(_form_of(inner[0]))
    if inner:
        return by_name(_form_of(inner[1]))
    return member_of(hint) if issubclass(hint, Enum) else RecordForm(hint).form


def _default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


class RecordForm:
    """Objects of one dataclass as JSON objects, whose keys are the names of its fields. None is left out."""

    def __init__(
        self,
        kind: Callable[..., Any],
        *,
        outside: Iterable[str] = (),
        absent: Iterable[str] = (),
        newer: Iterable[str] = (),
        forms: Mapping[str, Form] = MappingProxyType({}),
        keys: Mapping[str, str] = MappingProxyType({}),
        named: str = "",
        is_open: bool = False,
    ) -> None:
        """`outside`: fields that stand elsewhere. `absent`: those that may be missing; they have their default then.

        Fields that may be None are left out then. `newer`: those that may be missing, and are left out while they
        have their default, so that an older version can read what has none.
        `forms` and `keys`: of fields that have others. `named`: what fields are called in messages. `is_open`: other
        keys are ignored.
        """
        hints = get_type_hints(kind)
        names = [it.name for it in fields(kind) if it.name not in {*outside}]  # type: ignore[arg-type]  # a dataclass
        self._kind = kind
        self._parts = [(keys.get(it, it), it, forms.get(it) or _form_of(hints[it])) for it in names]
        self._known = {key for key, _, _ in self._parts}
        optional = {key for key, name, _ in self._parts if NoneType in get_args(hints[name])}
        self._newer = {it.name: _default_of(it) for it in fields(kind) if it.name in {*newer}}  # type: ignore[arg-type]  # likewise
        self._required = self._known - {*absent, *self._newer} - optional
        self._named = named
        self._is_open = is_open

    def write(self, value: Any) -> Document:
        found = ((key, form, getattr(value, name)) for key, name, form in self._parts)
        return {key: form.write(it) for key, form, it in found if it is not None and it != self._newer.get(key)}

    def read(self, document: Any, **outside: Any) -> Any:
        """Raises BadDocument."""
        given = {key: it for key, it in object_of(document).items() if it is not None}
        if not self._is_open and (unknown := sorted(given.keys() - self._known)):
            raise BadDocument(f"this version of slotmesh knows no {self._named}{', '.join(unknown)}")
        if missing := sorted(self._required - given.keys()):
            raise BadDocument(f"has no {', '.join(missing)}")
        values = {name: within(key, form.read, given[key]) for key, name, form in self._parts if key in given}
        return self._kind(**values, **outside)

    @property
    def form(self) -> Form:
        """Of a part of another document."""
        return Form(self.write, self.read)
