"""What the declaration of one setting of a backend has besides its name, type and default. Pure.

Purpose: a setting is declared once, in `slotmesh.spec.model`. From its declaration follow the rule that it must obey
(`rules`), its form in a document (`document`), its form on the wire (`wire`), who reads it, and what changing it means.
Invariants: a name in documents is the name on the wire, too; durations have `_s` at the end in Python only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, TypeVar

ValueT = TypeVar("ValueT")
_DECLARED: Final = "setting"
"""Key in the metadata of a dataclass's field."""


class SettingKind(Enum):
    """What values a setting has."""

    HANDLER = auto()
    """`MODULE:NAME`, or empty."""
    TEXT = auto()
    """A text of one line; its bounds are those of its length, characters."""
    INTEGER = auto()
    NUMBER = auto()
    """A number, whole or not."""
    SIZE = auto()
    """Bytes: an integer, in documents with its unit."""
    DURATION = auto()
    """Seconds, in documents with a unit, and on the wire a Duration."""
    FLAG = auto()
    CHOICE = auto()
    """A member of an Enum: in documents its name in lower case, on the wire its number."""
    JSON = auto()
    """A mapping of names to JSON values."""
    SECTION = auto()
    """A map of settings of its own, or None; on the wire a message."""


class Change(Enum):
    """What becomes of replicas when a setting changes."""

    TAKEN_OVER = auto()
    """They stay: the code that reads the setting takes the new value."""
    GIVEN_TO_HANDLERS = auto()
    """Replicas whose handler has a `reconfigure` stay, others are replaced."""
    REPLACES = auto()
    """They are replaced: no process takes it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, as it was declared."""

    attribute: str
    """Name of the field in Python."""
    kind: SettingKind
    default: Any
    bounds: tuple[float, float] | None = None
    """The smallest and the largest value; seconds, for a duration, and characters, for a text."""
    is_routed: bool = False
    """Routers read it: it is part of the routing table, which changes with it."""
    change: Change = Change.TAKEN_OVER
    is_filled_in: bool = False
    """The controller sets it: documents do not have it, and what requests say of it counts for nothing."""
    section: type[Any] | None = None
    """Of a section: the dataclass that declares its settings."""
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    """These, by their names in documents and on the wire."""

    @property
    def name(self) -> str:
        """Its name in documents and on the wire."""
        return self.attribute.removesuffix("_s") if self.kind is SettingKind.DURATION else self.attribute


def setting(
    default: ValueT,
    kind: SettingKind,
    *,
    bounds: tuple[float, float] | None = None,
    is_routed: bool = False,
    change: Change = Change.TAKEN_OVER,
    is_filled_in: bool = False,
    section: type[Any] | None = None,
) -> ValueT:
    """Declares a field of a dataclass; `Setting` documents each argument."""
    declared = {"kind": kind, "default": default, "bounds": bounds, "is_routed": is_routed, "change": change}
    metadata = {_DECLARED: {**declared, "is_filled_in": is_filled_in, "section": section}}
    # Dataclasses take no mapping for a default, be it a read-only one.
    made: Any = (
        field(default_factory=lambda: default, metadata=metadata)
        if kind is SettingKind.JSON
        else field(default=default, metadata=metadata)
    )
    return made  # type: ignore[no-any-return]  # dataclasses make an attribute of the default's type of it


def settings_of(model: type[Any]) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, by their names in documents and on the wire, in order."""
    found = [_declared(each.name, each.metadata[_DECLARED]) for each in fields(model) if each.metadata]
    return {each.name: each for each in found}


def _declared(attribute: str, said: Mapping[str, Any]) -> Setting:
    section = said["section"]
    return Setting(attribute=attribute, settings={} if section is None else settings_of(section), **said)


def choices(setting: Setting) -> tuple[str, ...]:
    """What a document may say of a setting of Kind.CHOICE."""
    return tuple(each.name.lower() for each in type(setting.default))


# Settings by the names that other serving frameworks have for them, and ours.

FOREIGN: Final = {
    "applications": ("backends",),
    "deployments": ("backends",),
    "models": ("backends",),
    "services": ("backends",),
    "import_path": ("handler",),
    "replicas": ("num_replicas",),
    "workers": ("num_replicas",),
    "autoscaling": ("autoscale",),
    "autoscaling_config": ("autoscale",),
    "min_replicas": (
        "min",
        "autoscale: {min: …}",
    ),
    "max_replicas": (
        "max",
        "autoscale: {max: …}",
    ),
    "target_ongoing_requests": (
        "target_ongoing",
        "autoscale: {target_ongoing: …}",
    ),
    "max_ongoing_requests": ("max_ongoing",),
    "max_concurrent_queries": ("max_ongoing",),
    "concurrency": ("max_ongoing",),
    "max_queued_requests": ("max_queued_calls",),
    "max_queue_size": ("max_queued_calls",),
    "timeout": ("max_queue_time",),
    "graceful_shutdown_timeout_s": ("graceful_timeout",),
    "init_kwargs": ("user_config",),
    "args": ("user_config",),
    "weights": ("traffic",),
    "backend": ("traffic: {NAME: 1.0}",),
    "backends": ("traffic: {NAME: 1.0}",),
    "canary": ("traffic",),
    "mirror": ("shadows",),
}
"""Another's name -> ours; where maps of the document differ, that of each."""
