"""The options that the calls of a run share, as far as the replica reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slotmesh.call_options.model import StatedOptions
from slotmesh.wire.limits import MAX_BYTES_AHEAD, MAX_VALUES_AHEAD


class HandlerCredit(NamedTuple):
    """How far a handler that yields may be ahead of its caller: it waits when either is reached."""

    values: int
    bytes: int


MAX_CREDIT = HandlerCredit(MAX_VALUES_AHEAD, MAX_BYTES_AHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCallOptions(StatedOptions):
    """What the calls of a run share. One object for all runs with equal options."""

    credit: HandlerCredit = MAX_CREDIT
    """Read only where callers take each value that the handler yields."""
