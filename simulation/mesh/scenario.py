"""One run, as values: who is there, what they do, and what befalls them. Made from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

ENDPOINT: Final = "e"
BACKEND: Final = "b"
SETTLE_S: Final = 1.0
"""What the mesh gets to come up before clients begin, seconds."""
CALM_S: Final = 1.0
"""Nothing begins to go wrong in the last second of the load."""


class WorkKind(Enum):
    """What a lane of work does."""

    UNKEYED = "unkeyed"
    KEYED = "keyed"
    STOP = "stop"
    STREAM = "stream"
    SLOT = "slot"
    REQUEST = "request"
    """Unary calls with a request id, which are made again, at other routers too."""
    RESERVATION = "reservation"
    """Calls in slots whose reservations are made again, at other routers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """Calls that one client makes, burst by burst."""

    kind: WorkKind
    key: str = ""
    keys: int = 1
    """So many keys of that name, in turn."""
    burst: int = 3
    pause_s: float = 0.2
    run_s: float = 0.02
    """What a call takes at its handler."""
    timeout_s: float = 20.0
    """Infinite: none."""
    fails: float = 0.0
    """Share of calls whose handler raises."""
    swallows: float = 0.0
    """Share of calls whose handler goes on when it is cancelled."""
    gives_up: float = 0.0
    """Share of calls that the caller cancels."""
    attempts: int = 3
    """The largest number of attempts at a call with a request id."""
    idempotent: bool = False
    large: bool = False
    """Payloads travel in chunks."""
    must_succeed: bool = False
    """Each call has to get a result, unless its handler raises."""

    def __str__(self) -> str:
        more = [
            f"{name}={value}"
            for name, value in (("fails", self.fails), ("swallows", self.swallows), ("gives_up", self.gives_up))
            if value
        ]
        more += ["one attempt"] if self.attempts == 1 else []
        more += [name for name in ("idempotent", "large", "must_succeed") if getattr(self, name)]
        words = [
            self.kind.value,
            f"{self.keys} times {self.key}" if self.keys > 1 else self.key,
            f"{self.burst} per {self.pause_s} s",
            f"run {self.run_s} s",
        ]
        return " ".join([*filter(None, words), f"timeout {self.timeout_s} s", *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """One client with its sessions."""

    name: str
    routers: tuple[str, ...]
    work: tuple[WorkPlan, ...]
    begins_s: float = SETTLE_S
    patience_s: float = 10.0
    """How long calls wait where no router can be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """One replica."""

    name: str
    begins_s: float = 0.0
    max_ongoing: int = 4
    twin_of: str = ""
    """It has the id of that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPlan:
    """One router."""

    name: str
    begins_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a certain frame is about to be read: in place of a time."""

    rpc: str
    frame: str
    source: str
    """The name of a node, or its kind."""
    target: str
    nth: int = 1
    """Of those after the fault's time."""

    def __str__(self) -> str:
        return f"when {self.frame} no. {self.nth} of {self.rpc} comes from {self.source} to {self.target}"


class Blow(Enum):
    """What befalls."""

    KILL = "kill"
    TERMINATE = "terminate"
    PAUSE = "pause"
    STALL = "stall"
    CUT = "cut"
    """Stalled both ways."""
    RESET = "reset"
    SLOW = "slow"
    JUMP = "jump"
    """The time of day."""
    PUT_BACK = "put back"
    """The controller is killed, and starts again with a copy of its store that is so many writes older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is broken on purpose."""

    blow: Blow
    at_s: float
    who: str
    other: str = ""
    """Of blows to a way: its other end."""
    for_s: float = 0.5
    """Until it is whole again; until a process is started again, below 0: it is not."""
    amount: float = 0.0
    moment: Moment | None = None

    def __str__(self) -> str:
        where = f"{self.who} to {self.other}" if self.other else self.who
        when = f"at {self.at_s:.3f} s" + (f", {self.moment}" if self.moment is not None else "")
        lasts = "for good" if self.for_s < 0 else f"for {self.for_s:.3f} s"
        amount = f" by {self.amount:g}" if self.amount else ""
        return f"{self.blow.value} {where}{amount}, {when}, {lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run."""

    seed: int
    plot: str = ""
    seconds: float
    """How long clients make calls."""
    routers: tuple[RouterPlan, ...]
    replicas: tuple[ReplicaPlan, ...]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...] = ()
    asks_again: bool = False
    """When all is whole again, each key gets one more call, which has to give a result."""
    remembers: bool = False
    """The controller has a store that it starts again with."""
    has_subsets: bool = False
    """Routers link to a part of the replicas."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.plot or 'no plot'}, {self.seconds:g} s of load"]
        lines += [f"  router {it.name}" + (f" from {it.begins_s:.3f} s" if it.begins_s else "") for it in self.routers]
        for it in self.replicas:
            begins = f" from {it.begins_s:.3f} s" if it.begins_s else ""
            twin = f", with the id of {it.twin_of}" if it.twin_of else ""
            lines.append(f"  replica {it.name}{begins}, {it.max_ongoing} permits{twin}")
        for each in self.clients:
            lines.append(f"  {each.name} at {', '.join(each.routers)} from {each.begins_s:.3f} s")
            lines += [f"    {work}" for work in each.work]
        lines += [f"  {fault}" for fault in sorted(self.faults, key=lambda fault: fault.at_s)]
        lines += ["  the controller has its store when it starts again"] if self.remembers else []
        lines += ["  routers link to a part of the replicas"] if self.has_subsets else []
        lines += ["  each key is asked again at the end"] if self.asks_again else []
        return "\n".join(lines)
