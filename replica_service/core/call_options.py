"""What the calls of a run share: which method, in which form, and what their caller wants of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from slotmesh.wire.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD

NO_METADATA: Mapping[str, str] = MappingProxyType({})


class Credit(NamedTuple):
    """How far a handler that yields may be ahead of who takes: it waits when either is reached."""

    values: int
    bytes: int


MAX_CREDIT = Credit(MAX_VALUES_AHEAD, MAX_BYTES_AHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What the calls of a run share. One object for all runs with equal options."""

    method: str = ""
    """Empty is `__call__`."""
    content_type: str = ""
    ordering_key: str = ""
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_METADATA)
    no_reply: bool = False
    """Nobody waits for the result: only that the call has ended is told."""
    streaming: bool = False
    """The caller takes several results."""
    credit: Credit = MAX_CREDIT
    """Read only where it does."""
    stop_generation: int = 0
    """Once a call of its ordering key and this generation has failed, none of these starts. 0: calls go on."""
