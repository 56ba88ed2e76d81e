"""Types that msgspec does not know by itself, by what they can do: nothing is imported for them.

Arrays and their scalars (`.tolist()`: numpy and everything that follows it) and pydantic models go both ways.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def to_builtins(value: Any) -> Any:
    """What msgspec can encode in the place of `value`."""
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        return tolist()
    model_dump = getattr(value, "model_dump", None)
    if model_dump is not None:
        return model_dump()
    raise NotImplementedError(f"{type(value).__qualname__} has no encoding")


def from_builtins(wanted: Any, value: Any) -> Any:
    """A `wanted` made of what msgspec decoded. msgspec adds the path to the error."""
    if isinstance(wanted, type):
        if isinstance(value, wanted):
            return value
        model_validate = getattr(wanted, "model_validate", None)
        if model_validate is not None:
            return _validated(model_validate, value)
    origin = getattr(wanted, "__origin__", wanted)
    numpy = sys.modules.get("numpy")  # where a handler speaks of numpy, it has imported it
    if numpy is not None and origin is numpy.ndarray and isinstance(value, list):
        return numpy.asarray(value)
    if numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.generic):
        return origin(value)
    raise TypeError(f"Expected `{getattr(origin, '__qualname__', origin)}`, got `{type(value).__qualname__}`")


def _validated(validate: Callable[[Any], Any], value: Any) -> Any:
    """Pydantic's own text runs over several lines and quotes the input: this keeps where and what."""
    try:
        return validate(value)
    except ValueError as error:
        errors: list[dict[str, Any]] = getattr(error, "errors", list)()
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in errors]
        raise ValueError("; ".join(problems) or str(error)) from None
