"""What an attack is: a function of the target and its scale, which raises where it is not answered as it should be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.attacks.target import Target


@dataclass(frozen=True, slots=True)
class Attack:
    """One of the catalogue."""

    name: str
    run: Callable[[Target, float], Awaitable[str]]
    """Returns what it did and how that was answered, in a line. At scale 1 it is as large as its file says.

    Raises AssertionError.
    """
    warm_up: float = 0.05
    """The scale of a round before all measurements, as a part of the attack's own: pools are as large then as they
    get, and as much garbage waits for a collection."""
    back_s: float = 30.0
    """In what time memory and descriptors have to be back."""


def scaled(count: int, scale: float, least: int = 1) -> int:
    """So many of what an attack has at scale 1."""
    return max(least, round(count * scale))
