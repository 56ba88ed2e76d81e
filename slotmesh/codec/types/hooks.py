"""Types that msgspec does not support by itself, recognized by what they can do: nothing is imported for them.

Arrays and their scalars (`.tolist()`: numpy and everything that follows it) and pydantic models go both ways. In
msgpack, arrays of numpy are an extension (`msgpack.py`), and are not encoded here.

Types of the standard library, and classes derived from plain ones:

| annotated | made of |
|---|---|
| `Iterable[T]`, `Container[T]`, `Reversible[T]`, `deque[T]` | a list |
| `OrderedDict[K, V]`, `ChainMap[K, V]`, `MappingProxyType[K, V]`, `Counter[K]` | a map |
| paths, addresses of `ipaddress` | text |
| a class derived from `str`, `bytes`, `int`, `float`, `list`, `tuple`, `set`, `frozenset`, `dict` | that type |

Invariants: a value is encoded as something that its own type can be made of again. Nothing is guessed about other
classes.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import ipaddress
import math
from collections import ChainMap, Counter, OrderedDict, UserString, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from slotmesh.codec.arrays import used_numpy
from slotmesh.codec.types.array_types import array_type
from slotmesh.codec.types.dataclass_defaults import with_defaults
from slotmesh.codec.types.models import codec_of, codec_of_value, is_model

_LISTS: Final = frozenset({collections.abc.Iterable, collections.abc.Container, collections.abc.Reversible})
_MAPS: Final = frozenset({OrderedDict, ChainMap, MappingProxyType})
_TEXTS: Final = (
    PurePath,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
_SCALARS: Final = (str, bytes, bytearray, int, float)
_CONTAINERS: Final = (dict, list, set, frozenset, tuple)
_PLAIN: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (bytearray, lambda value: bytes(memoryview(value))),
    (int, int.__int__),
    (float, float.__float__),
)
"""Returns the plain value of a derived class; overridden methods are not called."""


class MadeOf(NamedTuple):
    """How a type is made."""

    base: Any
    """The annotation of what it is made of."""
    make: Callable[[Any], Any]


@lru_cache(maxsize=1024)
def made_of(wanted: Any) -> MadeOf | None:
    """How the annotated type is made of one that msgspec knows; None if it is none of these."""
    kind, arguments = get_origin(wanted) or wanted, get_args(wanted)
    if kind in _LISTS:
        return MadeOf(list[arguments or (Any,)], list)  # type: ignore[misc]  # made from the annotation
    if kind is deque:
        return MadeOf(list[arguments or (Any,)], deque)  # type: ignore[misc]
    if kind is Counter:
        return MadeOf(dict[(*arguments, int) if arguments else (Any, int)], Counter)  # type: ignore[misc]
    if kind in _MAPS:
        return MadeOf(dict[arguments or (Any, Any)], kind)  # type: ignore[misc]
    if not isinstance(kind, type) or _is_known(kind) or issubclass(kind, defaultdict):
        return None
    if issubclass(kind, _TEXTS):
        return MadeOf(str, kind)
    if (scalar := next((base for base in _SCALARS if issubclass(kind, base)), None)) is not None:
        return MadeOf(scalar, kind)
    container = next((base for base in _CONTAINERS if issubclass(kind, base)), None)
    return None if container is None else MadeOf(_elements_of(kind, container, arguments), kind)


def _is_known(kind: type) -> bool:
    """Whether msgspec makes it itself."""
    is_record = hasattr(kind, "_fields") or hasattr(kind, "__required_keys__")  # named tuples, typed maps
    return kind in {bool, *_SCALARS, *_CONTAINERS} or is_record or issubclass(kind, Enum)


def _elements_of(kind: type, container: type, arguments: tuple[Any, ...]) -> Any:
    """The container with the type of its elements, if the class declares it, as `class Row(list[float])`."""
    for base in getattr(kind, "__orig_bases__", ()):
        if get_origin(base) is container:
            parameters = getattr(base, "__parameters__", ())
            return base[arguments] if parameters and len(parameters) == len(arguments) else base
    return container


def plain_of(value: Any) -> Any:
    """What msgspec can encode in the place of `value`.

    Raises:
        TypeError: its type has no encoding; the message names an alternative.
    """
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (UserString, *_TEXTS)):
        return str(value)
    if isinstance(value, Sequence | Set | ValuesView | deque):
        return list(value)
    raise TypeError(f"{type(value).__qualname__} has no encoding; {_way_out(value)}")


def _way_out(value: Any) -> str:
    if inspect.isawaitable(value):
        return "await it before it is returned"
    if isinstance(value, complex):
        return "send its real and imag, or an array of complex numbers in msgpack"
    if isinstance(value, collections.abc.AsyncIterable):
        return "yield its values, or annotate the method as `-> AsyncIterator[…]`"
    if isinstance(value, collections.abc.Iterator):
        return "make it a list, yield its values, or annotate the method as `-> Iterator[…]`"
    return "make it a dataclass, or what lists and dicts are made of"


_NO_KEYS: Final = frozenset({tuple, frozenset, bool, NoneType})
"""Types that msgspec encodes by itself wherever they are values: so one that arrives here is a key."""
_PYDANTIC: Final = frozenset({"pydantic", "pydantic_core", "pydantic_extra_types"})


def to_json(value: Any) -> Any:
    """What msgspec can encode as JSON in the place of `value`. Raises what `to_builtins` does."""
    if type(value) in _NO_KEYS:
        kind = type(value).__name__.removesuffix("Type")
        raise TypeError(f"a dict has a key that is a {kind}: keys in JSON are text or numbers; use text, or msgpack")
    model = codec_of_value(value)
    return to_builtins(value) if model is None else model.to_json(value, to_json)


def to_builtins(value: Any) -> Any:
    """What msgspec can encode as msgpack in the place of `value`.

    Raises:
        TypeError: it has no encoding; the message names a way out.
    """
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        plain = tolist()
        return plain if type(plain) is not type(value) else _of_long_double(value)
    if (model := codec_of_value(value)) is not None:
        return model.to_msgpack(value)
    if type(value).__module__.partition(".")[0] in _PYDANTIC:
        return _of_pydantic(value)
    return plain_of(value)


def _of_pydantic(value: Any) -> Any:
    """A value of one of pydantic's own types, as `HttpUrl`."""
    if hasattr(value, "get_secret_value"):
        raise TypeError(f"{type(value).__qualname__} would be sent as asterisks: send what get_secret_value() returns")
    pydantic_core: Any = importlib.import_module("pydantic_core")
    return pydantic_core.to_jsonable_python(value)


def _of_long_double(value: Any) -> float:
    """Scalars of numpy that are wider than Python's own are their own `tolist()`."""
    numpy: Any = used_numpy()
    if isinstance(value, numpy.floating) and (numpy.isnan(value) or float(value) == value):
        return float(value)
    raise TypeError(f"{type(value).__qualname__} has no encoding that keeps its value; convert it to float or to text")


def of_json(wanted: Any, value: Any) -> Any:
    """A `wanted` made of what msgspec decoded from JSON. msgspec adds the path to the error."""
    return _from_builtins(wanted, value, _of_json)


def of_msgpack(wanted: Any, value: Any) -> Any:
    """The same from msgpack, in which bytes and times are values of their own."""
    return _from_builtins(wanted, value, _of_msgpack)


def _of_json(value: Any, wanted: Any) -> Any:
    return msgspec.convert(value, wanted, dec_hook=of_json, str_keys=True)


def _of_msgpack(value: Any, wanted: Any) -> Any:
    return msgspec.convert(value, wanted, dec_hook=of_msgpack, builtin_types=(bytes, bytearray, memoryview))


def _from_builtins(wanted: Any, value: Any, convert: Callable[[Any, Any], Any]) -> Any:
    if isinstance(wanted, type):
        if is_model(wanted):
            codec = codec_of(wanted)
            return _validated(codec.from_json if convert is _of_json else codec.from_msgpack, value)
        if isinstance(value, wanted):
            return value
    array = array_type(wanted)
    numpy = used_numpy()
    if array is not None and isinstance(value, numpy.ndarray):
        return array.fit(value)
    if array is not None and isinstance(value, list):
        return array.of_list(value)
    origin = getattr(wanted, "__origin__", wanted)
    if numpy is not None and isinstance(origin, type) and issubclass(origin, numpy.generic):
        return _scalar(numpy, origin, value)
    if (made := made_of(wanted)) is not None:
        try:
            plain = _completed(made.base)(convert(value, made.base))
        except msgspec.ValidationError as error:  # as msgspec adds no path to its own
            raise TypeError(str(error)) from None
        return made.make(plain)
    raise TypeError(f"Expected `{getattr(origin, '__qualname__', origin)}`, got `{type(value).__qualname__}`")


@lru_cache(maxsize=1024)
def _completed(wanted: Any) -> Callable[[Any], Any]:
    return with_defaults(_unchanged, wanted)


def _unchanged(value: Any) -> Any:
    return value


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
