"""Correct histories of any kind, generated: what the checker has to accept, and what defects are seeded into."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from hypothesis import strategies as st

from tests.history.model import Call, Execution, Fault, History, Outcome

TIMEOUT_S = 5.0
TRAVEL_S = 0.001


class Fate(Enum):
    """What becomes of a few calls of a lane that are sent together."""

    ANSWERED = auto()
    RAISED = auto()
    """Executed, and the handler raised."""
    REFUSED = auto()
    """Never executed, and the failure says so."""
    LOST_BEFORE = auto()
    """The replica died with them before it executed any; nobody knows."""
    LOST_WITHIN = auto()
    """The replica died in the first one."""
    LOST_AFTER = auto()
    """The replica died when it had executed all, before it told."""
    RERUN = auto()
    """Idempotent: the replica died in the last one, and another executes all of them."""


@dataclass
class Writer:
    """Writes a history, one thing after another."""

    now: float = 100.0
    pid: int = 1
    calls: list[Call] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    deaths: dict[int, float] = field(default_factory=dict)

    def batch(self, lane: tuple[str, str], sequences: range, fate: Fate) -> None:
        """Calls of a lane (client and key), from sending to outcome."""
        client, key = lane
        calls = [
            Call(
                tag=f"{client}/{key}/{number}",
                client=client,
                endpoint="Ledger",
                key=key,
                sequence=number,
                idempotent=fate is Fate.RERUN,
                sent_at=self.now,
                deadline=self.now + TIMEOUT_S,
            )
            for number in sequences
        ]
        self.calls += calls
        match fate:
            case Fate.ANSWERED:
                self._execute(calls)
                self._answer(calls)
            case Fate.RAISED:
                self._execute(calls)
                self._answer(calls, "HANDLER_ERROR", "YES")
            case Fate.REFUSED:
                self._answer(calls, "QUEUE_FULL", "NO")
            case Fate.LOST_BEFORE:
                self._die()
                self._answer(calls, "REPLICA_LOST", "UNKNOWN")
            case Fate.LOST_WITHIN:
                self._execute(calls[:1], dies=True)
                self._answer(calls, "REPLICA_LOST", "UNKNOWN")
            case Fate.LOST_AFTER:
                self._execute(calls)
                self._die()
                self._answer(calls, "REPLICA_LOST", "UNKNOWN")
            case Fate.RERUN:
                self._execute(calls, dies=True)
                self._execute(calls)
                self._answer(calls)

    def history(self) -> History:
        """All of it, and a fault in the middle."""
        middle = self.calls[len(self.calls) // 2]
        fault = Fault(what="SIGKILL of router-1", at=middle.sent_at, cleared_at=middle.sent_at, seen="died of SIGKILL")
        return History(
            calls=self.calls,
            outcomes=self.outcomes,
            executions=self.executions,
            faults=[fault],
            deaths=self.deaths,
        )

    def _execute(self, calls: list[Call], *, dies: bool = False) -> None:
        for call in calls:
            last = dies and call is calls[-1]
            self.now += 2 * TRAVEL_S
            ended_at = None if last else self.now + TRAVEL_S
            self.executions.append(
                Execution(tag=call.tag, key=call.key, pid=self.pid, started_at=self.now, ended_at=ended_at)
            )
            self.now += 2 * TRAVEL_S
            if last:
                self._die()

    def _die(self) -> None:
        self.now += TRAVEL_S
        self.deaths[self.pid] = self.now
        self.pid += 1

    def _answer(self, calls: list[Call], reason: str = "", executed: str = "") -> None:
        for call in calls:
            self.now += TRAVEL_S
            reply = None if reason else call.tag
            self.outcomes.append(Outcome(tag=call.tag, at=self.now, reason=reason, executed=executed, reply=reply))


@st.composite
def histories(
    draw: st.DrawFn, fates: tuple[Fate, ...] = tuple(Fate), keys: tuple[str, ...] = ("a", "b", "")
) -> History:
    """Correct histories: calls of a few clients and keys, some unkeyed, each with a fate of its own."""
    writer = Writer()
    sent: dict[tuple[str, str], int] = {}
    steps = st.tuples(st.sampled_from(("c1", "c2")), st.sampled_from(keys), st.integers(1, 3), st.sampled_from(fates))
    for client, key, count, fate in draw(st.lists(steps, min_size=2, max_size=12)):
        lane = (client, key)
        first = sent.get(lane, 0)
        writer.batch(lane, range(first, first + count), fate)
        sent[lane] = first + count
    return writer.history()
