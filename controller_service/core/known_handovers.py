"""What is known of the partitions of an endpoint that are on the move: a value, kept in the observed state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controller_service.core.partitions import Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Handovers:
    """What is known of an endpoint's partitions on the move."""

    emptied: frozenset[tuple[Incarnation, int, int]] = frozenset()
    """(owner, partition, epoch): nothing of the partition is left at that owner, and nothing of the epoch starts."""
    balanced_at: float = float("-inf")
    """When partitions were last told to leave for better shares, seconds (monotonic)."""


NO_HANDOVERS: Final = Handovers()
