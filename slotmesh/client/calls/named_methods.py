"""Methods by name, of an endpoint, a lane, a slot or direct lanes: each is made once.

Invariant: the same method of the same view, with the same types, is the same object, so that its calls travel as one
batch.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from slotmesh.client.calls.call_spec import UNTYPED, MethodSignature

MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def check_interface(interface: object) -> None:
    """Raises TypeError if it is no class that is derived from `slotmesh.Interface`."""
    if not getattr(interface, "__slotmesh_interface__", False):
        name = getattr(interface, "__qualname__", repr(interface))
        raise TypeError(
            f"{name} is no slotmesh.Interface, which is what names the methods of an endpoint for callers: "
            "`slotmesh stubs ENDPOINT` writes one from a running mesh"
        )


class NamedMethods(ABC, Generic[MethodT]):
    """Methods by name: every attribute that is not defined here is a method of the handler."""

    def __init__(self) -> None:
        self._methods: dict[tuple[str, MethodSignature], MethodT] = {}

    def method(self, name: str, signature: MethodSignature = UNTYPED) -> MethodT:
        """The handler's method of that name: for names that are attributes of this class, and for computed ones.

        `signature`: its types in an interface.
        """
        key = name, signature
        method = self._methods.get(key)
        return self._methods.setdefault(key, self._new_method(name, signature)) if method is None else method

    @abstractmethod
    def _new_method(self, name: str, signature: MethodSignature) -> MethodT:
        """The method of that name, for the first time. Raises ValueError if no method can have it."""

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Calls the handler itself: a function, or an object with `__call__`."""
        future: asyncio.Future[Any] = self.method("__call__")(*args, **kwargs)
        return future

    def __getattr__(self, name: str) -> MethodT:
        if name.startswith("_"):  # never a handler's method; Python looks up many of these
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        method = self.method(name)
        self.__dict__[name] = method  # later look-ups do not get here
        return method
