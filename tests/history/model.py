"""A history: calls and outcomes of clients, executions of handlers, and faults.

Invariants: values only; a call is known by its tag, which its client chose and passed to the handler as an argument.
All times are seconds of the machine's monotonic clock, which all of its processes share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import msgspec

RESULT: Final = ""
"""The reason of an outcome that is a result."""


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """A call that a client made. Written before the call left."""

    tag: str
    client: str
    endpoint: str
    key: str = ""
    """Ordering key; empty for none."""
    sequence: int = 0
    """Place among this client's calls of the key, from 0."""
    idempotent: bool = False
    sent_at: float
    deadline: float | None = None

    @property
    def lane(self) -> Lane:
        """Within it calls are ordered. Calls of one key from two clients never overlap, but have no order."""
        return Lane(self.endpoint, self.key, self.client)

    def __str__(self) -> str:
        if not self.key:
            return f"call {self.tag!r} ({self.client}, unkeyed)"
        return f"call {self.tag!r} ({self.client}, key {self.key!r}, number {self.sequence})"


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What a client heard of a call."""

    tag: str
    at: float
    reason: str = RESULT
    """Of the failure, as `REPLICA_LOST`; empty where it is a result."""
    executed: str = ""
    """Of a failure: NO, UNKNOWN or YES."""
    reply: str | None = None
    """Of a result: the tag that the handler gave back."""

    @property
    def is_result(self) -> bool:
        return self.reason == RESULT

    def __str__(self) -> str:
        return "a result" if self.is_result else f"{self.reason} (executed {self.executed})"


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """Something that was broken on purpose."""

    what: str
    """For a person, as `SIGKILL of router-1`."""
    at: float
    cleared_at: float
    """When it was whole again; `at` where that is not known or nothing is to be cleared."""
    seen: str = ""
    """The proof that it happened, as `died of SIGKILL`; empty where nobody saw it."""
    holds_calls_s: float = 0.0
    """Calls on their way to a router or a replica were held up, and came there when it was whole again: they start, but
    no later than so many seconds after this began. 0: none was held up."""


class Death(msgspec.Struct, frozen=True, kw_only=True, tag="death"):
    """A process that executed calls and was killed."""

    pid: int
    at: float
    """Not later than its end: what ran then counts as running until here, and no longer."""


Entry: TypeAlias = Call | Outcome | Fault | Death
"""What the side of the clients writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a call by a handler."""

    tag: str
    key: str = ""
    pid: int
    started_at: float
    ended_at: float | None = None
    """None where its process was killed meanwhile, or it never ended."""


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """The calls of one key from one client."""

    endpoint: str
    key: str
    client: str

    def __str__(self) -> str:
        return f"key {self.key!r} of {self.client}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run has to reach before the first fault, or it proves nothing."""

    clients: int = 1
    """Clients that got outcomes in the last second before it."""
    outcomes_per_s: float = 1.0
    """Outcomes in that second."""


@dataclass(frozen=True, kw_only=True)
class History:
    """All that was recorded of one run, each kind in the order in which it was written."""

    calls: Sequence[Call] = ()
    outcomes: Sequence[Outcome] = ()
    executions: Sequence[Execution] = ()
    faults: Sequence[Fault] = ()
    deaths: Mapping[int, float] = field(default_factory=dict)
    """Killed processes: until when each can have run, by process id."""
    patience: float = 1.0
    """What is in time is so many times as long as it should be: more than 1 where the machine may be busy."""

    @cached_property
    def began_at(self) -> float:
        """When the first call was sent. Times are told from here."""
        return min((call.sent_at for call in self.calls), default=0.0)

    def since_start(self, at: float) -> str:
        """A time for a person, as `+3.141 s`."""
        return f"{at - self.began_at:+.3f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """An invariant that does not hold, in words that let a person find it."""

    invariant: str
    """Its short name, as `order`."""
    text: str
    tags: tuple[str, ...] = ()
    """The calls concerned."""

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"
