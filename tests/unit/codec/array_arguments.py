"""A handler that takes arrays of all kinds, and what it is given."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import (
    ArgumentsDecoder,
    DecodeError,
)
from slotmesh.errors import Reason


@dataclasses.dataclass
class Sample:
    pixels: np.ndarray
    weights: NDArray[np.float32] | None = None


class Shot(msgspec.Struct):
    sample: Sample
    name: str


class Picky(msgspec.Struct):
    numbers: list[float]

    def __post_init__(self) -> None:
        raise LookupError("no such numbers")


class Handler:
    def array(self, array: np.ndarray) -> None: ...

    def floats(self, array: NDArray[np.float32]) -> None: ...

    def any_floats(self, array: NDArray[np.floating[Any]]) -> None: ...

    def bytes_of(self, array: NDArray[np.uint8]) -> None: ...

    def maybe(self, array: np.ndarray | None = None) -> None: ...

    def shot(self, shot: Shot) -> None: ...

    def untyped(self, value: Any, *more: Any) -> None: ...

    def five(self, a: Any, b: str, c: np.ndarray, d: Any, e: Any) -> None: ...

    def both(self, array: np.ndarray, numbers: list[float]) -> None: ...

    def lists(self, rows: list[list[float]]) -> None: ...

    def many_lists(self, many: list[list[list[float]]]) -> None: ...

    def picky(self, picky: Picky) -> None: ...

    def named(self, array: np.ndarray, *, scale: float = 1.0) -> None: ...

    def rest(self, *arrays: np.ndarray) -> None: ...

    def kwargs(self, **arrays: np.ndarray) -> None: ...


def given(method: str, content_type: str, payload: bytes) -> Any:
    return ArgumentsDecoder.for_handler(getattr(Handler(), method)).decode(content_type, payload)


def refused(method: str, content_type: str, payload: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        given(method, content_type, payload)
    assert caught.value.failure.reason is Reason.BAD_ARGUMENTS
    return caught.value.failure.message


def same(left: Any, right: NDArray[Any]) -> bool:
    return (
        isinstance(left, np.ndarray)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )
