"""How many examples a property draws: what it says itself, times what the profile of hypothesis says of all."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_USUAL: Final = 100
"""Of the default profile."""


def examples(count: int) -> int:
    """`count` as a rule; a tenth with `--hypothesis-profile=quick`, ten times as many with `thorough`."""
    return max(1, count * settings().max_examples // _USUAL)
