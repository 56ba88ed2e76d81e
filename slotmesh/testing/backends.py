"""What a test says about a handler, as the mesh's specification has it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from slotmesh.handlers import describe
from slotmesh.spec import model

Handler: TypeAlias = "type | Callable[..., Any]"
"""A class or a function."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A handler and its settings: those of a backend in `mesh.yaml`. None: what the decorator says.

    Raises:
        TypeError: `handler` is neither class nor function, or has nothing to call.
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
    """Others of `slotmesh.spec.model.Backend`, as `{"max_queued_calls": 10}`."""

    def __post_init__(self) -> None:
        describe(self.handler)

    @property
    def path(self) -> str:
        """The name of the handler in specifications."""
        return f"{self.handler.__module__}:{self.handler.__name__}"

    def to_spec(self, name: str) -> model.Backend:
        """The backend as the controller gets it.

        Raises:
            TypeError: `settings` has what no backend has.
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
        return model.Backend(name=name, handler=self.path, **{**fields, **self.settings})


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
