"""One inference and its answer, whichever way they travel. Pure.

Invariant: elements are bytes as the protocol's raw contents have them: little-endian, in C order, BYTES each behind its
length in 4 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from slotmesh.codec.decoding_bounds import MAX_DECODED_BYTES

MAX_INPUTS: Final = 256
"""Tensors of one request."""
MAX_DIMENSIONS: Final = 32
MAX_TYPED_ELEMENTS: Final = 65_536
"""Elements of a request, or an answer, that are said one by one, as numbers of protobuf or JSON: 10 to 20 ms."""
ELEMENTS_OF_A_STRING: Final = 4
"""An element of BYTES takes as long as so many numbers, and counts as them among `MAX_TYPED_ELEMENTS`."""
MAX_JSON_BYTES: Final = MAX_DECODED_BYTES
"""JSON of a request, and of what of an answer is said in JSON. More goes in binary."""
MAX_PARAMETERS: Final = 64
MAX_NAME_BYTES: Final = 1024
"""Of a tensor's name."""

ParameterValue: TypeAlias = bool | int | float | str
NO_PARAMETERS: Final[Mapping[str, ParameterValue]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, in a request or an answer."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    """The elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """One inference."""

    model: str
    version: str = ""
    request_id: str = ""
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NO_PARAMETERS)
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[str] = ()
    """Names of outputs that are wanted; empty: all."""
    is_typed: bool = False
    """Elements came one by one: the answer should say them so, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceAnswer:
    """What came of it."""

    model: str
    version: str
    request_id: str = ""
    outputs: Sequence[Tensor] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NO_PARAMETERS)
