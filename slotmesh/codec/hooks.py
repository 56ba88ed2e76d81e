"""Types that msgspec does not know by itself, by what they can do: nothing is imported for them.

Arrays and their scalars (`.tolist()`: numpy and everything that follows it) and pydantic models go both ways. In
msgpack arrays of numpy are an extension (`msgpack.py`), and never come here to be encoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from slotmesh.codec.array_types import array_type
from slotmesh.codec.arrays import used_numpy


def to_builtins(value: Any) -> Any:
    """What msgspec can encode in the place of `value`."""
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        return tolist()
    model_dump = getattr(value, "model_dump", None)
    if model_dump is not None:
        return model_dump()
    kind = type(value).__qualname__
    raise NotImplementedError(f"{kind} has no encoding; make it a dataclass, or what lists and dicts are made of")


def from_builtins(wanted: Any, value: Any) -> Any:
    """A `wanted` made of what msgspec decoded. msgspec adds the path to the error."""
    if isinstance(wanted, type):
        if isinstance(value, wanted):
            return value
        model_validate = getattr(wanted, "model_validate", None)
        if model_validate is not None:
            return _validated(model_validate, value)
    array = array_type(wanted)
    numpy = used_numpy()
    if array is not None and isinstance(value, numpy.ndarray):
        return array.fit(value)
    if array is not None and isinstance(value, list):
        return array.of_list(value)
    origin = getattr(wanted, "__origin__", wanted)
    if numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.generic):
        return _scalar(numpy, origin, value)
    raise TypeError(f"Expected `{getattr(origin, '__qualname__', origin)}`, got `{type(value).__qualname__}`")


def _scalar(numpy: Any, wanted: Any, value: Any) -> Any:
    """A scalar of numpy, where it is the same number but for the rounding of floats."""
    is_number = issubclass(wanted, numpy.number | numpy.bool_)
    if (type(value) not in {int, float, bool}) if is_number else (type(value) is not str):
        raise TypeError(f"Expected `{wanted.__name__}`, got `{type(value).__qualname__}`")
    try:
        with numpy.errstate(over="ignore"):
            made = wanted(value)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    if issubclass(wanted, numpy.inexact) and numpy.isinf(made) and not math.isinf(value):
        raise TypeError(f"Expected `{wanted.__name__}`, got a number out of its range")
    if issubclass(wanted, numpy.integer | numpy.bool_) and made != value:
        raise TypeError(f"Expected `{wanted.__name__}`, got `{type(value).__qualname__}`")
    return made


def _validated(validate: Callable[[Any], Any], value: Any) -> Any:
    """Pydantic's own text runs over several lines and quotes the input: this keeps where and what."""
    try:
        return validate(value)
    except ValueError as error:
        errors: list[dict[str, Any]] = getattr(error, "errors", list)()
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in errors]
        raise ValueError("; ".join(problems) or str(error)) from None
