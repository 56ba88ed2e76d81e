"""What a handler can ask about the call that it is executing.

Invariant: set by the replica where a call carries something; elsewhere the defaults hold, so a handler can be called in
a test as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})

current_metadata: ContextVar[Mapping[str, str]] = ContextVar("slotmesh.call_metadata", default=NO_METADATA)
"""The replica's side: set before a call is started."""


def call_metadata() -> Mapping[str, str]:
    """The metadata that the caller sent with this call. Empty in batch methods, whose calls have many callers."""
    return current_metadata.get()
