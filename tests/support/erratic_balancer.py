"""A balancer that picks by chance, often what is not possible, on a clock that it moves itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from router_service.core.plugged_balancers import PlugIns
from slotmesh.balancers import CallEnd, Calls, Candidate, Pick
from slotmesh.spec.model import BUILT_IN_BALANCERS

ERRATIC: Final = "erratic"
ALL_BALANCERS: Final = (*BUILT_IN_BALANCERS, ERRATIC)


class Erratic:
    """Checks what it is shown as well."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._seen = [Candidate(replica_id="none such")]

    def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Any:
        assert [each.replica_id for each in candidates] == sorted({each.replica_id for each in candidates})
        assert all(each.free > 0 for each in candidates)
        assert calls.number > 0
        assert calls.size >= 0
        one = self._chance.choice(candidates)
        self._seen = [*self._seen[-9:], one]
        match self._chance.randrange(12):
            case 0:
                return None
            case 1:
                raise KeyError(one)
            case 2:
                return self._chance.choice(self._seen)
            case 3 | 4 | 5:
                return Pick(one, self._chance.randrange(-1, 9))
            case _:
                return one

    def changed(self, candidate: Candidate) -> None:
        if not self._chance.randrange(50):
            raise ValueError(candidate)

    def sent(self, _candidate: Candidate, count: int) -> None:
        assert count > 0

    def ended(self, _candidate: Candidate, count: int, _end: CallEnd, latency_s: float) -> None:
        assert count > 0
        assert latency_s >= 0.0


def erratic(seed: int) -> PlugIns:
    """Has it, set aside now and then, and fails where it finds what it is shown to be wrong."""
    chance, now = random.Random(seed), [0.0]

    def passed() -> float:
        now[0] += 0.5
        return now[0]

    def report(_backend: str, _balancer: str, _cause: object, error: BaseException | None) -> None:
        if isinstance(error, AssertionError):
            raise error

    return PlugIns(makers={ERRATIC: lambda: Erratic(chance)}, now=passed, report=report)
