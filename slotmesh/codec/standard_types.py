"""Types of the standard library, and classes derived from plain ones, that msgspec does not know by itself.

| annotated | made of |
|---|---|
| `Iterable[T]`, `Container[T]`, `Reversible[T]`, `deque[T]` | a list |
| `OrderedDict[K, V]`, `ChainMap[K, V]`, `MappingProxyType[K, V]`, `Counter[K]` | a map |
| paths, addresses of `ipaddress` | text |
| a class derived from `str`, `bytes`, `int`, `float`, `list`, `tuple`, `set`, `frozenset`, `dict` | that type |

Invariants: what a value is encoded as is what its own type can be made of again. Nothing is guessed of other classes.
"""

from __future__ import annotations

import collections.abc
import inspect
import ipaddress
from collections import ChainMap, Counter, OrderedDict, UserString, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, NamedTuple, get_args, get_origin

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
"""What makes the plain value of one whose class is derived; what a class overrides is not asked."""


class MadeOf(NamedTuple):
    """How a type is made."""

    base: Any
    """The annotation of what it is made of."""
    make: Callable[[Any], Any]


@lru_cache(maxsize=1024)
def made_of(wanted: Any) -> MadeOf | None:
    """How the annotated type is made of one that msgspec knows; None where it is none of these."""
    kind, arguments = get_origin(wanted) or wanted, get_args(wanted)
    if kind in _LISTS:
        return MadeOf(list[arguments or (Any,)], list)  # type: ignore[misc]  # made from what the annotation says
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
    """The container with what its elements are, where the class says so, as `class Row(list[float])`."""
    for base in getattr(kind, "__orig_bases__", ()):
        if get_origin(base) is container:
            parameters = getattr(base, "__parameters__", ())
            return base[arguments] if parameters and len(parameters) == len(arguments) else base
    return container


def plain_of(value: Any) -> Any:
    """What msgspec can encode in the place of `value`.

    Raises:
        TypeError: its type has no encoding; the message says what to return or to pass instead.
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
