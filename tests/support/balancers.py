"""Balancers as users write them, sound ones and others: routers under test load them by their path."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from slotmesh.balancers import CallEnd, Calls, Candidate, Pick


class First:
    """The least that one can do."""

    def pick(self, _calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[0]


class ByMetadata:
    """Sends calls where their metadata says, and writes down how they end."""

    ended_calls: list[tuple[str, int, CallEnd]]
    seen: list[Calls]

    def __init__(self) -> None:
        type(self).seen, type(self).ended_calls = [], []

    def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Pick | None:
        self.seen.append(calls)
        wanted = calls.metadata.get("to")
        found = [each for each in candidates if each.replica_id == wanted]
        return Pick(found[0], calls.number) if found else None

    def sent(self, candidate: Candidate, count: int) -> None:
        pass

    def ended(self, candidate: Candidate, count: int, end: CallEnd, latency_s: float) -> None:
        self.ended_calls.append((candidate.replica_id, count, end))


class Raises:
    def pick(self, calls: Calls, _candidates: Sequence[Candidate]) -> Candidate:
        raise KeyError(calls.affinity_key, "a secret of the caller")


class RaisesAtTheSecond:
    def __init__(self) -> None:
        self._picks = 0

    def pick(self, _calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        self._picks += 1
        if self._picks % 2 == 0:
            raise SystemExit(3)
        return candidates[-1]


class Hangs:
    """Blocks the router's event loop for a second."""

    def pick(self, _calls: Calls, candidates: Sequence[Candidate]) -> Candidate:
        time.sleep(1.0)
        return candidates[0]


class Nonsense:
    """Something else each time."""

    def __init__(self) -> None:
        self._picks = 0
        self._old: Candidate | None = None

    def pick(self, _calls: Calls, candidates: Sequence[Candidate]) -> Any:
        self._picks += 1
        self._old = self._old or candidates[0]
        answers: list[Any] = [
            *(None, 7, "r0", candidates, Candidate(replica_id="none such"), Pick(None, 3), self._old),
            *(Pick(candidates[0], -5), Pick(candidates[-1], 10**9), Pick(candidates[0], "all")),  # type: ignore[arg-type]
        ]
        return answers[self._picks % len(answers)]


class BadHooks(First):
    def changed(self, candidate: Candidate) -> None:
        raise OSError("changed")

    def sent(self, candidate: Candidate, count: int) -> None:
        raise OSError("sent")

    def ended(self, candidate: Candidate, count: int, end: CallEnd, latency_s: float) -> None:
        raise OSError("ended")


class CannotBeMade(First):
    def __init__(self) -> None:
        raise RuntimeError("no")


def make_first() -> First:
    """A function that makes one does as well."""
    return First()


NOT_ONE = 7
