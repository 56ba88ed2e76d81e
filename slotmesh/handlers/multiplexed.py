"""`@slotmesh.multiplexed`: a method that loads a model by its id, for many models in one replica.

Purpose: `model = await self.load(model_id)` in a call returns the loaded model, or loads it (`model_pools`).
Invariant: the decorated attribute of a class is no method that clients can call; nor is the one that unloads.
Owner: the class of the handler; each instance has a pool of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from slotmesh.calls.handler_figures import MAX_MODELS
from slotmesh.handlers.decorators import refusal
from slotmesh.handlers.kinds import MethodKind, kind_of, runnable
from slotmesh.handlers.model_pools import ModelPool

TargetT = TypeVar("TargetT", bound=Callable[..., Any])


class Multiplexed:
    """The attribute of a handler's class that `@multiplexed` makes."""

    def __init__(self, function: Callable[..., Any], max_models: int, unload: str) -> None:
        self._function = function
        self.max_models = max_models
        self.unload = unload
        """The name of the handler's method that unloads; empty: none."""
        self.is_async = kind_of(function) is MethodKind.ASYNC
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        pool = self.pool(instance)
        return pool.get if self.is_async else pool.get_in_thread

    def pool(self, instance: Any) -> ModelPool:
        """The models of this instance."""
        attributes = getattr(instance, "__dict__", None)
        if attributes is None:
            raise TypeError(f"{type(instance).__qualname__} has __slots__, and so no place for models")
        key = f"__slotmesh_models_{self._function.__qualname__}__"
        pool = attributes.get(key)
        if pool is None:
            pool = attributes.setdefault(key, self._new_pool(instance))
        return pool  # type: ignore[no-any-return]  # of a foreign dict

    def _new_pool(self, instance: Any) -> ModelPool:
        name = self._function.__qualname__
        unload = None
        if self.unload:
            unload = getattr(instance, self.unload, None)
            if not callable(unload):
                raise TypeError(f"{name}: unload={self.unload!r} must name a method of the handler")
            if kind_of(unload) is MethodKind.ASYNC and not self.is_async:
                raise TypeError(f"{name} is `def`, so {self.unload}, which unloads, must be `def`, too")
            _check_takes_one(unload, f"{name}: unload={self.unload!r} must name a method that takes the model", 1)
        function = runnable(self._function, MethodKind.ASYNC if self.is_async else MethodKind.DEF)
        return ModelPool(name, lambda it: function(instance, it), unload, self.max_models, is_async=self.is_async)


def multiplexed(
    target: object = None, /, *, max_models: int = 0, unload: str = "", **others: object
) -> Callable[[TargetT], TargetT]:
    """Makes a method that loads a model by its id keep the models: for more models than fit into one replica.

        @slotmesh.multiplexed(max_models=20)
        async def load(self, model_id: str) -> Model: ...

        async def predict(self, text: str) -> str:
            model = await self.load(slotmesh.context().model_id)
            return model(text)

    Calls name their model by the option `model_id`, and routers send them where it is loaded. A model is loaded once,
    however many calls need it; a load that raises fails the calls that wait for it, and the next call tries again. At
    most `max_models` are in memory; then the one whose last use is longest ago is unloaded, but none that a call uses:
    a call uses each model that it has loaded until it ends. A load that finds all models in use waits. A load may load
    others; one that needs its own model, or more than there is room for, fails.

    A `def` method loads in the thread of the call; an `async def` one in a task of its own, so that a cancelled call
    does not cancel it. No client can call the method. The replica unloads all models when it ends.

    Args:
        target: none: the decorator has arguments.
        max_models: models that are in memory at a time, 1 … 1,024, those that are being loaded or unloaded included.
        unload: the name of a method of the handler that is called with a model that is unloaded, `def` or, if the
            decorated method is, `async def`. Default: the model's own method `unload`, if it has one. No client can
            call it. The pool keeps no reference to the model then.
        **others: refused; the error names the equivalent of other frameworks' arguments.

    Raises:
        TypeError: a value of another type, another argument, or a target that is not a method which returns.
        ValueError: a value out of range.
    """
    if others:
        raise refusal("multiplexed", others, ("max_models", "unload"))
    if target is not None or isinstance(max_models, bool) or not isinstance(max_models, int):
        raise TypeError("@multiplexed takes max_models, an integer: @slotmesh.multiplexed(max_models=20)")
    if not 1 <= max_models <= MAX_MODELS:
        raise ValueError(f"@multiplexed: max_models is 1 … {MAX_MODELS}, got {max_models}")
    if not isinstance(unload, str):
        raise TypeError(f"@multiplexed: unload is the name of a method, got {unload!r}")

    def decorate(function: TargetT) -> TargetT:
        if not inspect.isfunction(function) or kind_of(function).yields:
            raise TypeError(f"@multiplexed decorates a method that returns a model, got {function!r}")
        _check_takes_one(function, f"@multiplexed: {function.__qualname__} must take the id of a model", 2)
        return Multiplexed(function, max_models, unload)  # type: ignore[return-value]  # called in the same way

    return decorate


def _check_takes_one(function: Callable[..., Any], problem: str, arguments: int) -> None:
    """Whether it can be called with one argument, of a function behind `self`. Raises TypeError."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise TypeError(f"{problem} and nothing else: {error}") from None
    except ValueError:
        pass  # a function of C without a signature


def multiplexed_of(handler: type) -> list[Multiplexed]:
    """The multiplexed methods of a handler's class."""
    found: dict[str, Any] = {}
    for base in reversed(handler.__mro__):
        found.update(vars(base))
    return [each for each in found.values() if isinstance(each, Multiplexed)]
