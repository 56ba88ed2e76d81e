"""The bounds of what handlers report of themselves, by `slotmesh.report` and as loaded models. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MAX_FIGURES: Final = 32
"""Names that a replica reports at a time."""
MAX_FIGURE_CHARS: Final = 64
"""Of each name."""
MAX_MODELS: Final = 1_024
"""Models that a replica reports at a time."""
MAX_MODEL_CHARS: Final = 65_536
"""Of the ids of these models, together."""

NO_FIGURES: Final[Mapping[str, float]] = MappingProxyType({})
