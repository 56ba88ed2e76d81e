"""What the declaration of one option of calls has besides its name, type and default. Pure.

Purpose: an option is declared once, in `slotmesh.call_options.model`. From its declaration follow what clients refuse
(`slotmesh.client.calls.options`) and servers too (`rules`), its form on the wire (`wire`), and who reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, Flag, auto
from typing import Any, Final, TypeVar

ValueT = TypeVar("ValueT")
_DECLARED: Final = "option"
"""Key in the metadata of a dataclass's field."""


class OptionKind(Enum):
    """What values an option has."""

    METHOD = auto()
    CONTENT_TYPE = auto()
    KEY = auto()
    """Text of a bounded length; empty: none."""
    TENANT = auto()
    """Printable text of a bounded length; empty: none."""
    DURATION = auto()
    """Seconds, not negative; None: not said. On the wire a Duration."""
    TIME = auto()
    """A time of day, aware of its zone; None: not said. On the wire a Timestamp."""
    FLAG = auto()
    COUNT = auto()
    """An integer, not negative."""
    METADATA = auto()
    """Text by name, bounded."""
    MARK = auto()
    """Some bytes that nobody can guess; empty: none."""


class Reader(Flag):
    """The services that decide by an option."""

    ROUTER = auto()
    REPLICA = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as it was declared."""

    attribute: str
    """Name of the field in Python."""
    kind: OptionKind
    read_by: Reader
    wire: str = ""
    """Name of the field of the message where it is another one than `argument`."""
    stays: bool = False
    """Routers take it out of what replicas get, so that calls which differ in it alone travel as one batch."""

    @property
    def argument(self) -> str:
        """Its name for callers."""
        return self.attribute.removesuffix("_s") if self.kind is OptionKind.DURATION else self.attribute

    @property
    def name(self) -> str:
        """Its name on the wire."""
        return self.wire or self.argument

    @property
    def has_presence(self) -> bool:
        """Whether the message distinguishes an unset field from one with the value 0."""
        return self.kind in {OptionKind.DURATION, OptionKind.TIME}


def option(default: ValueT, kind: OptionKind, *, read_by: Reader, wire: str = "", stays: bool = False) -> ValueT:
    """Declares a field of a dataclass; `Option` documents each argument."""
    metadata = {_DECLARED: {"kind": kind, "read_by": read_by, "wire": wire, "stays": stays}}
    # Dataclasses take no mapping for a default, be it a read-only one, and a mapping has no hash.
    made: Any = (
        field(default_factory=lambda: default, metadata=metadata, hash=False)
        if kind is OptionKind.METADATA
        else field(default=default, metadata=metadata)
    )
    return made  # type: ignore[no-any-return]  # dataclasses make an attribute of the default's type of it


def options_of(model: type[Any]) -> Mapping[str, Option]:
    """The options that a dataclass declares, by their names on the wire, in order."""
    found = [Option(attribute=each.name, **each.metadata[_DECLARED]) for each in fields(model) if each.metadata]
    return {each.name: each for each in found}
