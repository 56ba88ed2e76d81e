"""Balancers of one's own: which replica of a backend gets the next calls that have no ordering key.

    class MostMemory:
        def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Candidate | None:
            return max(candidates, key=lambda it: it.figures.get("kv_free", 0.0))

Routers load it at their start (`--balancers my_balancers:MostMemory`, or an entry point of the group
`slotmesh.balancers`), a backend names it as its `balancer`. Each router makes one for each such backend, by calling the
class without arguments. It is called on the router's event loop: it must not block, await, or take long
(`--balancer-budget`). Routers' own balancers (`least_loaded`, `power_of_two`, `round_robin`) have the same interface.
Invariants: what a balancer sees does not change; only candidates with room are shown; a wrong pick costs no call, the
router picks by `least_loaded` then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, runtime_checkable

from typing_extensions import TypeVar

_NO_TEXT: Final[Mapping[str, str]] = MappingProxyType({})
_NO_FIGURES: Final[Mapping[str, float]] = MappingProxyType({})


class Candidate(NamedTuple):
    """A replica that has room, at one moment. Fields are read by name: later versions have more."""

    replica_id: str
    rank: int | None = None
    """0 … n-1 among the replicas of its backend; it keeps it while it lives. None if it is not known yet."""
    zone: str = ""
    """Where it runs; empty if it was started without `--zone`."""
    is_near: bool = False
    """Whether that is the router's own zone."""
    devices: tuple[str, ...] = ()
    """The devices that it holds."""
    max_ongoing: int = 1
    """Calls that it executes concurrently."""
    in_flight: int = 0
    """Calls and reservations there: this router's, and those of others that it has reported."""
    free: int = 1
    """Further calls that this router may send now; at least 1."""
    models: frozenset[str] = frozenset()
    """The models that it has loaded."""
    figures: Mapping[str, float] = _NO_FIGURES
    """What its handler reported of itself by `slotmesh.report`, by name."""

    @property
    def load(self) -> float:
        """Share of `max_ongoing` in use; more than 1.0 if calls wait there."""
        return self.in_flight / self.max_ongoing


class Calls(NamedTuple):
    """Waiting calls that are alike, or one reservation: what one pick is for. Fields are read by name."""

    endpoint: str = ""
    method: str = ""
    """Empty: the handler itself is called."""
    number: int = 1
    """Of the calls."""
    size: int = 0
    """Bytes of their payloads in all, as far as these have arrived."""
    affinity_key: str = ""
    model_id: str = ""
    tenant: str = ""
    prefix_blocks: tuple[int, ...] = ()
    """Hashes of the blocks of their prompt, from its beginning, if the caller states them (`prefix_blocks`)."""
    metadata: Mapping[str, str] = _NO_TEXT
    """Their metadata, as far as the router shows it (`--balancer-metadata`)."""
    is_reservation: bool = False
    """A slot is wanted, for a call that is not known yet."""


ANY_CALLS: Final = Calls()
"""For balancers that do not look at calls."""

CandidateT = TypeVar("CandidateT", default=Candidate)
SeenT = TypeVar("SeenT", contravariant=True, default=Candidate)


class Pick(NamedTuple, Generic[CandidateT]):
    """A candidate, and how many of the calls it gets now. A pick for the rest follows."""

    candidate: CandidateT
    calls: int


class Balancer(Protocol[CandidateT]):
    """Picks among the replicas of one backend."""

    def pick(self, calls: Calls, candidates: Sequence[CandidateT], /) -> CandidateT | Pick[CandidateT] | None:
        """One of the candidates, or None, which leaves the pick to `least_loaded`.

        `candidates` has at least one, by replica id. With a plain candidate the router decides how many of the calls it
        gets: about a millisecond of work, or an even share.
        """


@runtime_checkable
class FollowsReplicas(Protocol[SeenT]):
    """A balancer that follows each change of a replica, so that a pick need not read all candidates."""

    def changed(self, candidate: SeenT, /) -> None:
        """The replica is new, or its load or room changed. Without room, or when it left, its `free` is 0 or less."""


class CallEnd(Enum):
    """How calls ended at their replica."""

    WELL = "well"
    FAILED = "failed"
    """The handler raised, or their time was up."""
    UNUSED = "unused"
    """Refused, cancelled or lost: they may never have run. Or a slot that no call used."""


@runtime_checkable
class FollowsCalls(Protocol[SeenT]):
    """A balancer that follows calls to their end. Each call and reservation that was sent ends once, later.

    Calls may join others at a replica without a pick of their own. A balancer also gets the ends of calls that were
    sent before it was the backend's.
    """

    def sent(self, candidate: SeenT, count: int, /) -> None:
        """`count` calls, or a reservation, go to the replica."""

    def ended(self, candidate: SeenT, count: int, end: CallEnd, latency_s: float, /) -> None:
        """Some have ended, `latency_s` after they were sent, or dispatched into their slot; 0.0 where unused."""
