"""What handlers report of themselves, by `slotmesh.report` and its like, and its bounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

MAX_FIGURES: Final = 32
"""Names that a replica reports at a time."""
MAX_FIGURE_CHARS: Final = 64
"""Of each name."""
MAX_MODELS: Final = 1_024
"""Models that a replica reports at a time."""
MAX_MODEL_CHARS: Final = 65_536
"""Of the ids of these models, together."""
MAX_SHOWN_MODELS: Final = 100
"""Models that the controller lists of a replica."""
MAX_SHOWN_MODEL_CHARS: Final = 256
"""Of each id."""

NO_FIGURES: Final[Mapping[str, float]] = MappingProxyType({})

MAX_EVICTED: Final = 16_384
"""Blocks of prompts that a replica reports as evicted at a time."""


class Evicted(NamedTuple):
    """Blocks of prompts that a handler holds no longer."""

    blocks: tuple[int, ...] = ()
    is_all: bool = False
    """It had evicted all blocks before these."""


NOTHING_EVICTED: Final = Evicted()
