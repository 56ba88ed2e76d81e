"""The name of a method as requests have it: bounded before anything keeps or repeats it. Pure."""

from __future__ import annotations

from typing import Final

MAX_METHOD_CHARS: Final = 256
"""More than the name of any method has."""
