"""A balancer that picks by chance, often what is not possible, and whose hooks raise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from router_service.core.plugged_balancers import PlugIns
from router_service.core.routing.topology import Topology
from slotmesh.balancers import CallEnd, Calls, Candidate, Pick
from slotmesh.spec.model import BUILT_IN_BALANCERS

ERRATIC: Final = "erratic"
ALL_BALANCERS: Final = (*BUILT_IN_BALANCERS, ERRATIC, "unknown")


class Erratic:
    """Checks what it is shown as well."""

    def __init__(self, chance: random.Random, topology: Callable[[], Topology]) -> None:
        self._chance = chance
        self._topology = topology
        self._seen = [Candidate(replica_id="none such")]

    def pick(self, calls: Calls, candidates: Sequence[Candidate]) -> Any:
        assert [each.replica_id for each in candidates] == sorted({each.replica_id for each in candidates})
        known = {(key[0], each.free) for key, each in self._topology().replicas.items() if each.free > 0}
        assert all((each.replica_id, each.free) in known for each in candidates), "a replica is not as it is shown"
        assert calls.number > 0
        assert calls.size >= 0
        one = self._chance.choice(candidates)
        self._seen = [*self._seen[-9:], one]
        no_count: Any = "many"
        match self._chance.randrange(12):
            case 0:
                return self._chance.choice((None, 7, one.replica_id, Pick(None, 1), Pick(one, no_count)))
            case 1:
                raise KeyError(one)
            case 2:
                return self._chance.choice(self._seen)
            case 3 | 4 | 5:
                return Pick(one, self._chance.randrange(-1, 9))
            case _:
                return one

    def changed(self, _candidate: Candidate) -> None:
        self._may_raise(0.3)

    def sent(self, _candidate: Candidate, count: int) -> None:
        assert count > 0
        self._may_raise(0.1)

    def ended(self, _candidate: Candidate, count: int, _end: CallEnd, latency_s: float) -> None:
        assert count > 0
        assert latency_s >= 0.0
        self._may_raise(0.1)

    def _may_raise(self, share: float) -> None:
        if self._chance.random() < share:
            raise SystemExit(share)


def erratic(seed: int, now: Callable[[], float], topology: Callable[[], Topology]) -> PlugIns:
    """Has it, and fails where it finds what it is shown to be wrong. By some seeds it is never set aside for long."""
    chance, calls = random.Random(seed), count()
    clock = now if seed % 3 else lambda: 1_000.0 * next(calls)

    def report(_backend: str, _balancer: str, _cause: object, error: BaseException | None) -> None:
        if isinstance(error, AssertionError):
            raise error

    return PlugIns(makers={ERRATIC: lambda: Erratic(chance, topology)}, now=clock, report=report)
