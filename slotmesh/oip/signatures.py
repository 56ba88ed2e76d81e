"""What a method takes and gives as tensors: read by replicas off annotations, told by routers to who asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

MAX_DESCRIBED: Final = 4_096
"""Tensors of all methods of a handler that are described; methods behind them are not."""
UNKNOWN_DIMENSION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """One tensor."""

    name: str
    datatype: str
    """As the protocol names it."""
    shape: tuple[int, ...]
    """-1 where a dimension is not known."""
    optional: bool = False
    """Of an input: the parameter has a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodTensors:
    """One method."""

    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    """Empty where the annotation does not tell."""
    yields: bool = False
    """It has any number of results."""
    batch_size: int = 0
    """Calls that it takes at once, at most; 0: it is no batch method."""


NO_TENSORS: Final[Mapping[str, MethodTensors]] = MappingProxyType({})
"""Of methods that nothing is known of."""
