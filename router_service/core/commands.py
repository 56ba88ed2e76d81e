"""What the scheduler wants done. The shell carries these out in order; they carry no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.core.callers import Caller
    from router_service.core.calls import Sent
    from router_service.core.replicas import Replica
    from slotmesh.errors import Failure


@dataclass(slots=True, eq=False)
class Flush:
    """The replica's outbox was empty and has something now: cut frames until it is empty again."""

    replica: Replica


@dataclass(slots=True, eq=False)
class CancelRun:
    """Tell the replica that nobody waits for `count` calls of the slice any more, from offset `lo`."""

    sent: Sent
    lo: int
    count: int


@dataclass(slots=True, eq=False)
class DeliverResults:
    """Hand results to the caller. `ids` and `payloads` are parallel."""

    caller: Caller
    ids: Sequence[int]
    payloads: Sequence[bytes]
    content_type: str
    replica: Replica
    size: int
    """Payload bytes of the calls that were answered: what the window gets back."""


@dataclass(slots=True, eq=False)
class DeliverFailure:
    """Hand one failure to the caller, for all of `ids`."""

    caller: Caller
    ids: Sequence[int]
    failure: Failure
    size: int
    """Payload bytes of the calls that failed: what the window gets back."""


@dataclass(slots=True, eq=False)
class OpenLink:
    """Connect to the replica, and stay connected until told otherwise."""

    replica: Replica


@dataclass(slots=True, eq=False)
class CloseLink:
    """The replica is no longer of use: disconnect."""

    replica: Replica


Command = Flush | CancelRun | DeliverResults | DeliverFailure | OpenLink | CloseLink
