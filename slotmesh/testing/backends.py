"""Handlers and their settings in a test, and their conversion to specifications."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from slotmesh.handlers import describe
from slotmesh.handlers.batch_settings import BatchControl
from slotmesh.handlers.decorators import batch_control
from slotmesh.spec import model
from slotmesh.spec.environment import EnvironmentValue, value_of
from slotmesh.spec.handler_settings import BatchSettings
from slotmesh.spec.rules import backend_violations
from slotmesh.spec.setting import SettingKind, choices

Handler: TypeAlias = "type | Callable[..., Any]"
"""A class or a function."""


_SETTINGS: Final = {each.attribute: each for each in model.SETTINGS.values()}
_FORMS: Final[Mapping[SettingKind, tuple[tuple[type, ...], str]]] = {
    SettingKind.BALANCER: ((str,), "a str"),
    SettingKind.TEXT: ((str,), "a str"),
    SettingKind.INTEGER: ((int,), "an int"),
    SettingKind.NUMBER: ((int, float), "a number"),
    SettingKind.SIZE: ((int,), "an int, bytes"),
    SettingKind.DURATION: ((int, float), "a number of seconds"),
    SettingKind.FLAG: ((bool,), "a bool"),
    SettingKind.JSON: ((Mapping,), "a mapping"),
    SettingKind.ENVIRONMENT: ((Mapping,), "a mapping"),
    SettingKind.AMOUNTS: ((Mapping,), "a mapping"),
}
"""The types of values, and words for them."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A handler and its settings: those of a backend in `mesh.yaml`. None: the value of the handler's decorator.

    Raises:
        TypeError: `handler` is neither class nor function, or has no callable method; or a setting has an invalid
        value.
    """

    handler: Handler
    """The class or function, possibly a local one."""
    user_config: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the constructor, by name: JSON values, as in a specification."""
    num_replicas: int = 1
    max_ongoing: int | None = None
    prefetch: int | None = None
    graceful_timeout_s: float = 5.0
    """Time for running calls when a replica drains, in seconds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `slotmesh.spec.model.Backend`, as `{"max_queued_calls": 10, "balancer": "round_robin"}`.

    Those of a process (`env`, `python`, `cwd`, `cpus`, `memory`) are checked and shown, and have no effect: handlers
    run in the test's own process.
    """

    def __post_init__(self) -> None:
        describe(self.handler)
        self.to_spec("backend")

    @property
    def path(self) -> str:
        """The name of the handler in specifications."""
        return f"{self.handler.__module__}:{self.handler.__name__}"

    def to_spec(self, name: str) -> model.Backend:
        """The backend for the controller.

        Raises:
            TypeError: `settings` has an unknown setting, or an invalid value.
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
        violations = [it for it in backend_violations(backend) if it.path.startswith(f"backends.{name}.")]
        if violations := [it for it in violations if not it.path.endswith(".handler")]:  # handlers may be local
            texts = (f"{it.path.partition('.')[2].partition('.')[2]} {it.message}" for it in violations)
            raise TypeError("; ".join(texts))
        return backend


def _value(name: str, value: Any) -> Any:
    """A setting in the model's form: a choice may be given in `mesh.yaml`'s form, by its name in lower case."""
    setting = _SETTINGS.get(name)
    if setting is None or value is None:
        return value
    if setting.kind is SettingKind.CHOICE and not isinstance(value, type(setting.default)):
        if value not in choices(setting):
            raise TypeError(f"{name} must be one of {', '.join(choices(setting))}, got {value!r}")
        return type(setting.default)[value.upper()]
    if setting.kind is SettingKind.SECTION and setting.section is not None and isinstance(value, Mapping):
        return setting.section(**value)
    if setting.kind in _FORMS:
        types, words = _FORMS[setting.kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            got = type(value).__name__ if setting.kind is SettingKind.ENVIRONMENT else repr(value)  # it may be secret
            raise TypeError(f"{name} must be {words}, got {got}")
    if setting.kind is SettingKind.ENVIRONMENT:
        return _environment(value)
    return value


def _environment(value: Mapping[str, Any]) -> dict[str, EnvironmentValue]:
    found = dict[str, EnvironmentValue]()
    for name, it in value.items():
        try:
            found[name] = value_of(it)
        except ValueError as error:
            raise TypeError(f"env.{name} {error}") from None
    return found


def as_backend(target: Handler | Backend, user_config: Mapping[str, Any] | None = None) -> Backend:
    """The target as a Backend, with these arguments of the constructor.

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


@contextmanager
def kept(*handlers: Handler) -> Iterator[None]:
    """Restores the settings that handlers change within the block, by `set_max_batch_size` and similar functions.

    These settings belong to the functions, and would outlive a test that runs handlers in its own process.
    """
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
