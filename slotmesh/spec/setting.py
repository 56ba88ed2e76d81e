"""The declaration of one setting of a backend, besides its name, type and default. Pure.

Purpose: a setting is declared once, in `slotmesh.spec.model`. Its rule (`rules`), its form in documents (`document`)
and on the wire (`slotmesh.convert.specification`), its readers and the effect of a change follow from that declaration.
Invariants: the name in documents is the name on the wire; durations end in `_s` in Python only.
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
    """The type of a setting's values."""

    HANDLER = auto()
    """`MODULE:NAME`, or empty."""
    BALANCER = auto()
    """A name of a balancer, or `MODULE:NAME`."""
    TEXT = auto()
    """A single line; its bounds limit the number of characters."""
    INTEGER = auto()
    NUMBER = auto()
    """An integer or a float."""
    SIZE = auto()
    """Bytes: an integer; in documents with a unit."""
    DURATION = auto()
    """Seconds; in documents with a unit, on the wire a Duration."""
    FLAG = auto()
    CHOICE = auto()
    """A member of an Enum; in documents its name in lower case, on the wire its number or that name."""
    JSON = auto()
    """A map of names to JSON values."""
    ENVIRONMENT = auto()
    """A map of names of variables to text, `{inherit: true}` or `{file: PATH}`."""
    AMOUNTS = auto()
    """A map of names to numbers."""
    SECTION = auto()
    """A map of further settings, or None; on the wire a message."""


class Change(Enum):
    """The effect of a changed setting on running replicas."""

    TAKEN_OVER = auto()
    """They stay: the reader of the setting uses the new value."""
    GIVEN_TO_HANDLERS = auto()
    """Replicas whose handler has a `reconfigure` method stay; others are replaced."""
    REPLACES = auto()
    """They are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One declared setting."""

    attribute: str
    """Name of the field in Python."""
    kind: SettingKind
    default: Any
    bounds: tuple[float, float] | None = None
    """The smallest and the largest value; for a duration in seconds, for a text its length in characters."""
    is_routed: bool = False
    """Routers read it: it is part of the routing table."""
    change: Change = Change.TAKEN_OVER
    is_filled_in: bool = False
    """The controller sets it: documents do not have it, and its value in requests is ignored."""
    is_newer: bool = False
    """It was added after 0.2.0: while it has its default, digests are those of 0.2.0, which can read the state file."""
    section: type[Any] | None = None
    """For a section: the dataclass that declares its settings."""
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    """The settings of a section, by their names in documents and on the wire."""

    @property
    def name(self) -> str:
        """The name in documents and on the wire."""
        return self.attribute.removesuffix("_s") if self.kind is SettingKind.DURATION else self.attribute


def setting(
    default: ValueT,
    kind: SettingKind,
    *,
    bounds: tuple[float, float] | None = None,
    is_routed: bool = False,
    change: Change = Change.TAKEN_OVER,
    is_filled_in: bool = False,
    is_newer: bool = False,
    section: type[Any] | None = None,
) -> ValueT:
    """Declares a field of a dataclass; `Setting` documents each argument."""
    declared = {"kind": kind, "default": default, "bounds": bounds, "is_routed": is_routed, "change": change}
    declared |= {"is_filled_in": is_filled_in, "is_newer": is_newer, "section": section}
    metadata = {_DECLARED: declared}
    # Dataclasses refuse a mapping as a default, even a read-only one.
    made: Any = (
        field(default_factory=lambda: default, metadata=metadata)
        if kind in {SettingKind.JSON, SettingKind.ENVIRONMENT, SettingKind.AMOUNTS}
        else field(default=default, metadata=metadata)
    )
    return made  # type: ignore[no-any-return]  # dataclasses make an attribute of the default's type of it


def settings_of(model: type[Any]) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, by their names in documents and on the wire, in order."""
    found = [_declared(each.name, each.metadata[_DECLARED]) for each in fields(model) if each.metadata]
    return {each.name: each for each in found}


def _declared(attribute: str, declaration: Mapping[str, Any]) -> Setting:
    section = declaration["section"]
    return Setting(attribute=attribute, settings={} if section is None else settings_of(section), **declaration)


def choices(setting: Setting) -> tuple[str, ...]:
    """The values of a setting of kind CHOICE in documents."""
    return tuple(each.name.lower() for each in type(setting.default))


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
    "num_cpus": ("cpus",),
    "num_gpus": ("devices: {cuda: …}",),
    "gpus": ("devices",),
    "environment": ("env",),
    "env_vars": ("env",),
    "runtime_env": ("env",),
    "working_dir": ("cwd",),
    "request_router_config": ("balancer",),
    "weights": ("traffic",),
    "backend": ("traffic: {NAME: 1.0}",),
    "backends": ("traffic: {NAME: 1.0}",),
    "canary": ("traffic",),
    "mirror": ("shadows",),
}
"""Names in other serving frameworks -> settings of this one; several if maps of the document differ."""
