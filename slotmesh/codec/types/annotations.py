"""What an annotation asks for, made ready for msgspec, or refused: once, when a method is registered.

Purpose: constraints of pydantic and of annotated-types are checked, not skipped; unions of models, and classes whose
fields have such constraints, are left to pydantic as a whole. A type that no payload can become is refused at start.
Invariant: what `checked` lets pass decodes; its errors name the type and a way out.
"""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import Message

from slotmesh.codec.arrays import used_numpy
from slotmesh.codec.types.array_types import array_type
from slotmesh.codec.types.hooks import made_of
from slotmesh.codec.types.models import by_pydantic, codec_of, is_model

_BUILTINS: Final = (dict, list, str, int, float, bool, bytes, NoneType)
_UNIONS: Final = frozenset({Union, UnionType})
_CONSTRAINTS: Final = frozenset({"annotated_types", "pydantic", "pydantic_core"})
"""Packages whose metadata are constraints."""
_OF_NUMBERS: Final = ("gt", "ge", "lt", "le", "multiple_of")
_OF_LENGTHS: Final = ("min_length", "max_length")
_SIZED: Final = (str, bytes, list, tuple, set, frozenset, dict)
_WRAPPERS: Final = frozenset(
    {list, tuple, set, frozenset, dict, type(None), typing.Final, typing.Required, typing.NotRequired}
    | {getattr(collections.abc, name) for name in ("Collection", "Sequence", "MutableSequence", "Set", "MutableSet")}
    | {collections.abc.Mapping, collections.abc.MutableMapping}
)
_WAYS_OUT: Final = (
    ("more than one str-like", "in JSON they are all text: take one of them, or a parameter for each"),
    ("more than one array-like", "in JSON they are all lists: take one of them, or a parameter for each"),
    ("more than one dict-like", "make them msgspec.Struct classes with tag=True, or pydantic models, or take a dict"),
    ("more than one dataclass", "make them msgspec.Struct classes with tag=True, or pydantic models, or take a dict"),
    ("must be tagged", "give each of them tag=True"),
    ("containing a custom type", "take one of them, or a parameter for each"),
)
_INSTEAD: Final = (
    (complex, "take two numbers, or an np.ndarray of complex numbers in msgpack"),
    (range, "take a list[int]"),
    (defaultdict, "take a dict: a default factory does not travel"),
    (collections.abc.AsyncIterable, "take a list"),
    (collections.abc.Iterator, "take a list"),
)


# -- refusals -------------------------------------------------------------------------------------------------------


def checked(wanted: Any) -> Any:
    """The annotation as msgspec is given it.

    Raises:
        TypeError: no payload can become it, or it has constraints that nothing would check.
    """
    if wanted is Any:
        return wanted
    try:
        return _checked(wanted)
    except TypeError:
        if _has_hash(wanted):
            raise
        return wanted


@lru_cache(maxsize=1024)
def _checked(wanted: Any) -> Any:
    wanted = _prepared(wanted)
    deque(all_in(wanted, _parts_of_leaf), maxlen=0)  # which raises
    return wanted


def _has_hash(wanted: Any) -> bool:
    try:
        hash(wanted)
    except TypeError:
        return False
    return True


def all_in(wanted: Any, of_leaf: Callable[[Any], Sequence[Any]] = lambda _: ()) -> Iterator[Any]:
    """An annotation, and all that it consists of, each once. `of_leaf`: what else a type without parts is made of."""
    seen: set[Any] = set()
    ahead = [wanted]
    while ahead:
        each = ahead.pop()
        try:
            if each in seen:
                continue
            seen.add(each)
        except TypeError:  # it has no hash: nothing that is a type
            continue
        yield each
        parts = parts_of(each)
        ahead += of_leaf(each) if parts is None else parts


def way_out(error: TypeError) -> str:
    """The text of an error of msgspec, with a way out where one is known."""
    text = str(error)
    found = next((way for part, way in _WAYS_OUT if part in text), "")
    return f"{text}: {found}" if found else text


def _parts_of_leaf(wanted: Any) -> Sequence[Any]:
    """What a type that has no fields is made of. Raises TypeError where that is nothing."""
    kind = get_origin(wanted) or wanted
    if not isinstance(kind, type) or not is_custom(kind) or issubclass(kind, Message):
        return ()
    if is_model(kind):
        codec_of(wanted)
        return ()
    numpy = used_numpy()
    if (array := array_type(wanted)) is not None:
        if array.is_of_no_numbers:
            raise TypeError(f"{array} cannot be sent: take an array of numbers, or a list")
        return ()
    if numpy is not None and issubclass(kind, numpy.generic):
        if kind not in set(numpy.sctypeDict.values()):
            raise TypeError(f"{kind.__name__} is no type of its own: take np.float64, np.int64, or another one")
        return ()
    if (made := made_of(wanted)) is not None:
        return (made.base,)
    if not get_args(wanted) and any(issubclass(each, kind) for each in _BUILTINS):
        return ()
    instead = next((way for base, way in _INSTEAD if issubclass(kind, base)), "")
    raise TypeError(
        f"no payload can become a {kind.__qualname__}: "
        + (instead or "make it a dataclass, a msgspec.Struct or a pydantic model, or take what it is made of")
    )


def is_custom(kind: type) -> bool:
    """Whether msgspec leaves the class to its hooks."""
    try:
        return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except Exception:  # noqa: BLE001 - a foreign class may raise anything, and msgspec will report it
        return False


def parts_of(wanted: Any) -> Sequence[Any] | None:
    """What an annotation consists of; None of one that msgspec or a hook takes as a whole."""
    origin = get_origin(wanted)
    if origin is Annotated:
        return get_args(wanted)[:1]
    if origin is Literal:
        return ()
    if origin in _UNIONS or origin in _WRAPPERS:
        return [each for each in get_args(wanted) if each is not ...]
    if isinstance(wanted, typing.NewType):
        return (wanted.__supertype__,)
    kind = origin or wanted
    if _has_fields(kind):
        return [*get_args(wanted), *_fields(kind)]
    return None


def _has_fields(kind: Any) -> bool:
    if not isinstance(kind, type) or is_model(kind):
        return False
    is_struct = issubclass(kind, msgspec.Struct) or hasattr(kind, "__attrs_attrs__")
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_typed_map = issubclass(kind, dict) and hasattr(kind, "__required_keys__")  # that of typing_extensions, too
    return is_struct or is_named_tuple or is_typed_map or is_dataclass(kind)


def _fields(kind: Any) -> Sequence[Any]:
    try:
        return list(get_type_hints(kind, include_extras=True).values())
    except Exception:  # noqa: BLE001 - names that cannot be resolved are msgspec's to report
        return ()


# -- pydantic -------------------------------------------------------------------------------------------------------


def _prepared(wanted: Any) -> Any:
    """With what only pydantic can check in the form of classes of its own, and constraints as msgspec's.

    Raises:
        TypeError: constraints that nothing would check.
    """
    if not _has_hash(wanted):
        return wanted
    origin = get_origin(wanted)
    if origin is Annotated:
        return _constrained(wanted)
    if _is_pydantics(wanted):
        return by_pydantic(wanted)
    arguments = get_args(wanted)
    if not arguments and isinstance(origin, type):  # as `typing.Hashable`
        return origin
    if origin is Literal or not arguments or _has_fields(origin):
        return wanted
    made = tuple(each if each is ... else _prepared(each) for each in arguments)
    if all(each is before for each, before in zip(made, arguments, strict=True)):
        return wanted
    if origin in _UNIONS:
        return Union[made]  # noqa: UP007 - made from the annotation
    return wanted.copy_with(made) if hasattr(wanted, "copy_with") else origin[made]


def _is_pydantics(wanted: Any) -> bool:
    """Whether only pydantic can check it, and has to have all of it."""
    origin = get_origin(wanted)
    if origin in _UNIONS:
        others = [each for each in get_args(wanted) if each is not NoneType]
        return len(others) > 1 and any(is_model(get_origin(each) or each) for each in map(_bare, others))
    kind = origin or wanted
    if not _has_fields(kind):
        return False
    if hasattr(kind, "__pydantic_validator__"):
        return True
    found = next((each for each in all_in(wanted) if _constraints(each) or _is_pydantic_dataclass(each)), None)
    if found is not None and issubclass(kind, msgspec.Struct):
        raise TypeError(
            f"{kind.__qualname__}: constraints of pydantic are not checked in a msgspec.Struct: use msgspec.Meta"
        )
    return found is not None


def _bare(wanted: Any) -> Any:
    return get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted


def _is_pydantic_dataclass(wanted: Any) -> bool:
    return isinstance(wanted, type) and is_dataclass(wanted) and hasattr(wanted, "__pydantic_validator__")


def _constraints(wanted: Any) -> list[Any]:
    """Metadata of an annotation that pydantic would check."""
    if get_origin(wanted) is not Annotated:
        return []
    found: list[Any] = []
    for each in get_args(wanted)[1:]:
        if type(each).__name__ == "FieldInfo":
            found += each.metadata
            if each.discriminator is not None:
                found.append(each)
        elif hasattr(each, "__get_pydantic_core_schema__") or any(
            base.__module__.partition(".")[0] in _CONSTRAINTS for base in type(each).__mro__
        ):
            found.append(each)
    return found


def _constrained(wanted: Any) -> Any:
    """Constraints as msgspec's own where it has them, which keeps its strictness; else pydantic checks."""
    base, *metadata = get_args(wanted)
    constraints = _constraints(wanted)
    inner = _prepared(base)
    if not constraints:
        return wanted if inner is base else Annotated[(inner, *metadata)]
    known = _known_constraints(base, constraints)
    if known is None:
        return by_pydantic(wanted)
    return Annotated[inner, msgspec.Meta(**known)]


def _known_constraints(base: Any, constraints: Sequence[Any]) -> dict[str, Any] | None:
    """As msgspec names them; None if one is of another kind."""
    kind = get_origin(base) or base
    if kind in {int, float}:
        names: Sequence[str] = _OF_NUMBERS
    elif kind in _SIZED:
        names = _OF_LENGTHS
    else:
        return None
    found: dict[str, Any] = {}
    for each in constraints:
        stated = {
            name: value
            for name, value in inspect.getmembers(each)
            if value is not None and not name.startswith("_") and not inspect.isroutine(value)
        }
        if not stated or not stated.keys() <= set(names) or found.keys() & stated.keys():
            return None
        found |= stated
    return found if all(type(value) in {int, float} for value in found.values()) else None
