"""What a test says about a handler, as the mesh's specification has it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from slotmesh.handlers import describe
from slotmesh.handlers.batching import BatchControl
from slotmesh.handlers.decorators import batch_control
from slotmesh.spec import model
from slotmesh.spec.handler_settings import BatchSettings
from slotmesh.spec.rules import backend_violations
from slotmesh.spec.setting import SettingKind, choices

Handler: TypeAlias = "type | Callable[..., Any]"
"""A class or a function."""


_SETTINGS: Final = {each.attribute: each for each in model.SETTINGS.values()}
_TYPES: Final[Mapping[SettingKind, tuple[type, ...]]] = {
    SettingKind.TEXT: (str,),
    SettingKind.INTEGER: (int,),
    SettingKind.NUMBER: (int, float),
    SettingKind.SIZE: (int,),
    SettingKind.DURATION: (int, float),
    SettingKind.FLAG: (bool,),
    SettingKind.JSON: (Mapping,),
}
_WORDS: Final = {
    SettingKind.TEXT: "a str",
    SettingKind.INTEGER: "an int",
    SettingKind.NUMBER: "a number",
    SettingKind.SIZE: "an int, bytes",
    SettingKind.DURATION: "a number of seconds",
    SettingKind.FLAG: "a bool",
    SettingKind.JSON: "a mapping",
}


@dataclass(frozen=True, slots=True)
class Backend:
    """A handler and its settings: those of a backend in `mesh.yaml`. None: what the decorator says.

    Raises:
        TypeError: `handler` is neither class nor function, or has nothing to call; or a setting cannot have its value.
    """

    handler: Handler
    """The class or function itself, which may be a local one."""
    user_config: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the constructor, by name: JSON values, as a specification can have them."""
    num_replicas: int = 1
    max_ongoing: int | None = None
    prefetch: int | None = None
    graceful_timeout_s: float = 5.0
    """What running calls get when a replica drains, seconds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Others of `slotmesh.spec.model.Backend`, as `{"max_queued_calls": 10, "balancer": "round_robin"}`."""

    def __post_init__(self) -> None:
        describe(self.handler)
        self.to_spec("backend")

    @property
    def path(self) -> str:
        """The name of the handler in specifications."""
        return f"{self.handler.__module__}:{self.handler.__name__}"

    def to_spec(self, name: str) -> model.Backend:
        """The backend as the controller gets it.

        Raises:
            TypeError: `settings` has what no backend has, or a value that the setting cannot have.
        """
        known = {each.name for each in dataclasses.fields(model.Backend)} - {"name", "handler"}
        if renamed := self.settings.keys() & model.RENAMED.keys():
            raise TypeError("; ".join(f"{each} is called {model.RENAMED[each]} now" for each in sorted(renamed)))
        if unknown := self.settings.keys() - known:
            raise TypeError(f"a backend has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
        fields: dict[str, Any] = {
            "num_replicas": self.num_replicas,
            "max_ongoing": self.max_ongoing,
            "prefetch": self.prefetch,
            "user_config": self.user_config,
            "graceful_timeout_s": self.graceful_timeout_s,
        }
        given = {key: _value(key, value) for key, value in {**fields, **self.settings}.items()}
        backend = model.Backend(name=name, handler=self.path, **given)
        mistakes = [it for it in backend_violations(backend) if it.path.startswith(f"backends.{name}.")]
        if mistakes := [it for it in mistakes if not it.path.endswith(".handler")]:  # which may be a local one
            raise TypeError("; ".join(f"{it.path.partition('.')[2].partition('.')[2]} {it.message}" for it in mistakes))
        return backend


def _value(name: str, value: Any) -> Any:
    """A setting as the model has it: a choice may be given as `mesh.yaml` has it, by its name in lower case."""
    setting = _SETTINGS.get(name)
    if setting is None or value is None:
        return value
    if setting.kind is SettingKind.CHOICE and not isinstance(value, type(setting.default)):
        if value not in choices(setting):
            raise TypeError(f"{name} must be one of {', '.join(choices(setting))}, got {value!r}")
        return type(setting.default)[value.upper()]
    if setting.kind is SettingKind.SECTION and setting.section is not None and isinstance(value, Mapping):
        return setting.section(**value)
    types = _TYPES.get(setting.kind)
    if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        raise TypeError(f"{name} must be {_WORDS[setting.kind]}, got {value!r}")
    return value


def as_backend(target: Handler | Backend, user_config: Mapping[str, Any] | None = None) -> Backend:
    """What was given, with these arguments of the constructor besides.

    Raises:
        TypeError: it is no handler.
    """
    if not isinstance(target, Backend):
        if not inspect.isclass(target) and not inspect.isfunction(target):
            raise TypeError(
                f"a handler is a class or a function, or a slotmesh.testing.Backend with one, got {target!r}"
            )
        target = Backend(target)
    return dataclasses.replace(target, user_config={**target.user_config, **(user_config or {})})


# Settings of batch methods are their functions', and so outlive a test that runs handlers in its own process.


@contextmanager
def kept(*handlers: Handler) -> Iterator[None]:
    """What handlers set within the block with `set_max_batch_size` and the like is put back after it."""
    before = [(control, control.settings) for handler in handlers for control in _controls(handler)]
    try:
        yield
    finally:
        for control, settings in before:
            _put_back(control, settings)


def _controls(handler: Handler) -> Iterator[BatchControl]:
    functions = [handler]
    if inspect.isclass(handler):
        functions = [value for _, value in inspect.getmembers_static(handler)]
    for function in functions:
        if (control := batch_control(getattr(function, "__func__", function))) is not None:
            yield control


def _put_back(control: BatchControl, settings: BatchSettings) -> None:
    control.set_max_batch_size(settings.max_batch_size)
    control.set_batch_wait_timeout_s(settings.batch_wait_timeout_s)
    control.set_max_concurrent_batches(settings.max_concurrent_batches)
