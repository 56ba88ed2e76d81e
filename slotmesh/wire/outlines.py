"""What a handler's method takes and gives, as it travels from replicas to routers to who asks. Pure.

Invariant: routers pass the text of a schema on, and never read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_OUTLINE_CHARS: Final = 64 * 1024
"""Text of all outlines of one replica."""
MAX_TOLD_CHARS: Final = 4 * 1024 * 1024
"""Of all outlines in one answer of a router."""


@dataclass(frozen=True, slots=True)
class MethodOutline:
    """Of one method; `__call__` for the handler itself."""

    method: str
    yields: bool = False
    """It gives values one by one."""
    schema: str = ""
    """JSON text, as `DescribedMethod.schema`; empty where nothing is known."""

    @property
    def size(self) -> int:
        return len(self.method) + len(self.schema) + 8


def fitting(outlines: Iterable[MethodOutline], most: int = MAX_OUTLINE_CHARS) -> tuple[MethodOutline, ...]:
    """The first of them, with so many characters in all."""
    kept: list[MethodOutline] = []
    for each in outlines:
        most -= each.size
        if most < 0:
            break
        kept.append(each)
    return tuple(kept)
