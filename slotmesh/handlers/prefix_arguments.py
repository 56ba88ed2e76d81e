"""`@prefix_argument`: which argument of a method holds the prompt whose beginning routers recognise.

Invariant: the decorator returns the object that it was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from slotmesh.handlers.kinds import layers
from slotmesh.names import did_you_mean

TargetT = TypeVar("TargetT", bound=Callable[..., Any])

_PREFIX: Final = "__slotmesh_prefix__"


def prefix_argument(name: str) -> Callable[[TargetT], TargetT]:
    """Names the argument of a method that is a prompt: text, bytes, or a list of token ids.

    With `affinity: prefix` of the backend, routers send a call to the replica that has got the longest beginning of its
    prompt lately (docs/affinity.md). Without that setting it has no effect.

        @slotmesh.prefix_argument("prompt")
        async def generate(self, prompt: str, max_tokens: int = 256) -> AsyncIterator[str]: ...

    Raises:
        TypeError: the method has no such parameter.
    """

    def decorate(function: TargetT) -> TargetT:
        parameters = inspect.signature(function).parameters
        if name not in parameters:
            known = did_you_mean(name, parameters) or f"; it has {', '.join(parameters) or 'none'}"
            raise TypeError(f"@prefix_argument: {function.__name__} has no parameter {name!r}{known}")
        setattr(function, _PREFIX, name)
        return function

    return decorate


def prefix_argument_of(function: Any) -> str:
    """The name that the decorator left on a function, a bound method, or what these wrap; empty: none."""
    found = (getattr(layer, _PREFIX, None) for layer in layers(function))
    return next((each for each in found if isinstance(each, str)), "")
