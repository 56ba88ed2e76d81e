"""Whether what a method is annotated to return can be sent: looked at once, when a method is registered.

Invariant: a class is refused only where neither it nor a class derived from it has an encoding.
"""

from __future__ import annotations

import inspect
from collections import UserString, deque
from collections.abc import Mapping, Sequence, Set, ValuesView
from pathlib import PurePath
from typing import Any, Final, get_origin

from google.protobuf.message import Message

from slotmesh.codec.annotations import is_custom, parts_of
from slotmesh.codec.arrays import used_numpy
from slotmesh.codec.models import check_is_written, is_model
from slotmesh.codec.standard_types import made_of

_ENCODED: Final = (str, bytes, int, float, Mapping, Sequence, Set, ValuesView, deque, UserString, PurePath, Message)
_MOST_SUBCLASSES: Final = 256
"""Derived classes that are looked at; where there are more, nothing is said."""


def check_result(wanted: Any, *, batched: bool = False) -> None:
    """Raises TypeError for an annotation of a result that no content type can carry.

    `batched`: it is an entry of what a batch method returns, which may be an exception.
    """
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
        parts = parts_of(each)
        kind = get_origin(each) or each
        if parts is not None:
            ahead += parts
        elif isinstance(kind, type):
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
