"""A handler's method by its signature: the part of `inspect` that the codec needs, and whether its result can be sent.

Invariants: read once, when the method is registered; never during a call. A class of results is refused only if neither
it nor a class derived from it has an encoding.
"""

from __future__ import annotations

import inspect
from collections import UserString, deque
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from slotmesh.codec.arrays import used_numpy
from slotmesh.codec.types.annotations import all_in, checked, is_custom, parts_of
from slotmesh.codec.types.array_types import ArrayType, array_type
from slotmesh.codec.types.hooks import made_of
from slotmesh.codec.types.models import check_is_written, is_model

_Kind = inspect.Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter, `self` aside."""

    name: str
    wanted: Any
    """The annotation; Any where there is none, or where its names cannot be resolved at run time."""
    required: bool
    positional: bool
    """May be given by position."""
    named: bool
    """May be given by name."""
    stacked: ArrayType | None = None
    """Of a batch method that takes an array in place of a list: an array with a row a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Everything a method takes."""

    text: str
    """As a person would write it, as `classify(pixels, scale=1.0)`."""
    parameters: tuple[Parameter, ...]
    more_positional: Any | None
    """Annotation of `*args`, None without one."""
    more_named: Any | None
    """Annotation of `**kwargs`, None without one."""
    batched: bool = False
    """It takes lists, an entry a call, or arrays, a row a call."""

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """Those that may be given by position, in order."""
        return tuple(parameter for parameter in self.parameters if parameter.positional)

    @property
    def single(self) -> Parameter | None:
        """What takes one positional argument, where that one is all that a call needs."""
        first = self.positional[:1]
        if any(parameter.required for parameter in self.parameters if parameter not in first):
            return None
        if first:
            return first[0]
        if self.more_positional is None:
            return None
        return Parameter(name="args", wanted=self.more_positional, required=True, positional=True, named=False)


def read_signature(function: Callable[..., Any], *, batched: bool = False) -> Signature:
    """Reads the signature of a function or a bound method.

    `batched`: the function takes lists, one entry a call, so that each call is described by the lists' elements; or
    arrays, one row a call.

    Raises:
        TypeError: `batched`, and it has no parameter, or one that is annotated as something else.
    """
    signature = inspect.signature(function)
    parameters, more_positional, more_named = [], None, None
    for parameter in signature.parameters.values():
        wanted = resolve_annotation(parameter.annotation, function)
        stacked = array_type(wanted) if batched else None
        if batched:
            if wanted in _NO_LISTS:
                raise TypeError(
                    f"{parameter.name} is annotated {wanted.__name__}, but a batch method is given a list there, an "
                    f"entry a call: write list[{wanted.__name__}], or np.ndarray for rows of an array"
                )
            wanted = _element(wanted)
        try:
            wanted = checked(wanted)
        except TypeError as error:
            raise TypeError(f"{parameter.name}: {error}") from None
        match parameter.kind:
            case _Kind.VAR_POSITIONAL:
                more_positional = wanted
            case _Kind.VAR_KEYWORD:
                more_named = wanted
            case kind:
                parameters.append(
                    Parameter(
                        name=parameter.name,
                        wanted=wanted,
                        required=parameter.default is _Kind.empty,
                        positional=kind is not _Kind.KEYWORD_ONLY,
                        named=kind is not _Kind.POSITIONAL_ONLY,
                        stacked=stacked,
                    )
                )
    if batched and not signature.parameters:
        raise TypeError("a batch method is given a list for each argument of its calls: it needs a parameter at least")
    bare = signature.replace(
        parameters=[parameter.replace(annotation=_Kind.empty) for parameter in signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return Signature(
        text=f"{getattr(function, '__name__', 'handler')}{bare}",
        parameters=tuple(parameters),
        more_positional=more_positional,
        more_named=more_named,
        batched=batched,
    )


_NO_LISTS = (int, float, complex, bool, str, bytes, dict, set)


def resolve_annotation(annotation: Any, function: Callable[..., Any]) -> Any:
    """What an annotation of the function means; Any where there is none, or where its names cannot be resolved."""
    if annotation is _Kind.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    plain: Any = inspect.unwrap(getattr(function, "__func__", function))
    while isinstance(plain, partial | partialmethod):
        plain = inspect.unwrap(plain.func)
    if not hasattr(plain, "__globals__"):
        plain = getattr(type(plain), "__call__", plain)  # noqa: B004 - the method itself, of an object that has it
    # One annotation at a time, so that one name which only type checkers know costs one check only.
    alone = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(alone, getattr(plain, "__globals__", {}), include_extras=True)["it"]
    except Exception:  # noqa: BLE001  # whatever a foreign annotation raises, it is no check then
        return Any


def _element(wanted: Any) -> Any:
    if get_origin(wanted) in {list, Sequence} and (arguments := get_args(wanted)):
        return arguments[0]
    return Any


_ENCODED: Final = (str, bytes, int, float, Mapping, Sequence, Set, ValuesView, deque, UserString, PurePath, Message)
_MOST_SUBCLASSES: Final = 256
"""Derived classes that are examined; if there are more, the class is accepted."""


def check_result(wanted: Any, *, batched: bool = False) -> None:
    """Raises TypeError for an annotation of a result that no content type can carry.

    `batched`: it is an entry of what a batch method returns, which may be an exception.
    """
    for each in all_in(wanted):
        kind = get_origin(each) or each
        if parts_of(each) is not None or not isinstance(kind, type):
            continue
        if is_model(kind):
            check_is_written(kind)
        elif not (batched and issubclass(kind, BaseException)) and not _may_be_sent(kind):
            raise TypeError(f"a result of type {kind.__qualname__} cannot be sent: {_way_out(kind)}")


def _may_be_sent(kind: type) -> bool:
    if issubclass(kind, complex | BaseException) or _is_complex(kind):
        return False
    ahead: list[Any] = [kind]
    for _ in range(_MOST_SUBCLASSES):
        if not ahead:
            return False
        each = ahead.pop()
        if _has_encoding(each):
            return True
        ahead += type.__subclasses__(each)
    return True


def _is_complex(kind: type) -> bool:
    numpy = used_numpy()
    return numpy is not None and issubclass(kind, numpy.complexfloating)


def _has_encoding(kind: Any) -> bool:
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False) or not is_custom(kind):
        return True
    known = issubclass(kind, _ENCODED) or made_of(kind) is not None or str(kind.__module__).startswith("pydantic")
    return known or hasattr(kind, "tolist") or hasattr(kind, "model_dump")


def _way_out(kind: type) -> str:
    if issubclass(kind, complex) or _is_complex(kind):
        return "return its real and imag, or an np.ndarray of complex numbers in msgpack"
    return "return a dataclass, a msgspec.Struct or a pydantic model, or what lists and dicts are made of"
