"""What clients called and heard, and what handlers executed: kept in memory, judged by the history checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.history.model import Call, Execution, History, Outcome

FINISHED, RAISED, CANCELLED = "finished", "raised", "cancelled"
"""How an execution ended, as its handler saw it."""


class Recorder:
    """Writes the history of one run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.calls: dict[str, Call] = {}
        self.stop_lanes: dict[str, int] = {}
        """Calls of lanes that stop at a failure: their generation."""
        self.due: dict[str, float] = {}
        """When the timeout of such a call passes at the replica that has it: links and routers may have been slow."""
        self.outcomes: list[Outcome] = []
        self.executions: list[Execution] = []
        self.endings: list[str] = []
        """How each execution ended; empty: it has not."""
        self.given_up: set[str] = set()
        """Calls that their callers cancelled."""
        self.attempts: dict[str, list[float]] = {}
        """When the attempts at a call with a request id began, by the tag of the call."""
        self.doubled: dict[str, list[str]] = {}
        """Reservations that held more than one slot at a time, and the replicas of these."""
        self.must_succeed: set[str] = set()
        """Calls that were made when nothing was broken any more."""
        self.deaths: dict[int, float] = {}
        self.is_over = False
        self.unanswered = 0

    def called(self, call: Call, *, stop_generation: int = 0, is_request: bool = False) -> None:
        self.calls[call.tag] = call
        self.unanswered += 1
        if stop_generation:
            self.stop_lanes[call.tag] = stop_generation
        if is_request:
            self.attempts[call.tag] = []

    def attempted(self, tag: str) -> None:
        """The call is made, perhaps again."""
        self.attempts[tag].append(self._now())

    def came_to_replica(self, tag: str, time_left_s: float) -> None:
        """A replica has read the call."""
        if tag in self.stop_lanes:
            call = self.calls[tag]
            most_s = time_left_s if call.deadline is None else min(time_left_s, call.deadline - call.sent_at)
            self.due[tag] = max(self.due.get(tag, 0.0), self._now() + most_s)

    def heard(self, tag: str, *, reason: str = "", executed: str = "", reply: str | None = None) -> None:
        if not self.is_over:
            self.unanswered -= 1
            self.outcomes.append(Outcome(tag=tag, at=self._now(), reason=reason, executed=executed, reply=reply))

    def started(self, tag: str, key: str, pid: int) -> int:
        """The number of the execution."""
        if not self.is_over:
            self.executions.append(Execution(tag=tag, key=key, pid=pid, started_at=self._now()))
            self.endings.append("")
        return len(self.executions) - 1

    def ended(self, number: int, how: str) -> None:
        execution = self.executions[number]
        if not self.is_over and execution.pid not in self.deaths:
            self.executions[number] = replace(execution, ended_at=self._now())
            self.endings[number] = how

    def died(self, pid: int) -> None:
        """What ran in that process has ended."""
        self.deaths.setdefault(pid, self._now())

    def history(self) -> History:
        history = History(
            calls=list(self.calls.values()),
            outcomes=self.outcomes,
            executions=self.executions,
            deaths=self.deaths,
        )
        vars(history)["began_at"] = 0.0  # violations name the times that the trace has
        return history
