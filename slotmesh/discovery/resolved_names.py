"""Which addresses of servers are known, and when their names are resolved again. Pure: has no clock, and no chance.

Invariants: a successful lookup replaces the addresses of its name; one that failed, or found none, changes nothing: the
name server may be away while the servers are not. A name has one lookup at a time. It is resolved again after
`REFRESH_S`, so that new servers are used and removed ones left; sooner on request, as when no known server answers, but
after a pause that grows with each lookup that found nothing new. Times are jittered, so that many processes that lost
the same server do not ask at the same moment.
Owner: `ServerAddresses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from slotmesh.discovery.targets import DnsName, Target
from slotmesh.units import join_host_port

REFRESH_S: Final = 30.0
"""Between two lookups without a reason. Half as long at the least: the jitter."""
FIRST_PAUSE_S: Final = 1.0
"""Between a lookup and the next one on request, or after a failure. Half as long at the least."""
LAST_PAUSE_S: Final = 10.0
"""To which the pause doubles. Records of a Kubernetes Service live 5 s."""
MAX_ADDRESSES: Final = 256
"""Addresses of one name that are used; of more, others in each process."""

NOT_YET: Final = "it has not been resolved yet"


class _Name:
    """One name."""

    __slots__ = ("addresses", "due", "earliest", "first", "is_awaited", "is_requested", "pause_s", "problem")

    def __init__(self, first: float) -> None:
        self.first = first
        """Where those that are used begin if there are too many addresses, as a share of all."""
        self.addresses: tuple[str, ...] = ()
        self.problem = NOT_YET
        """Why the last lookup found no addresses; empty if it did."""
        self.due = -inf
        """When it is to be resolved."""
        self.earliest = -inf
        """When it may be, on request."""
        self.pause_s = FIRST_PAUSE_S
        self.is_awaited = False
        """A lookup is under way."""
        self.is_requested = False
        """The lookup under way is one on request, or repeats one that failed."""

    def ended(self, now: float, draw: float, *, wait_s: float, is_news: bool) -> None:
        if is_news or not self.is_requested:
            self.pause_s = FIRST_PAUSE_S
        jitter = 0.5 + 0.5 * draw
        self.earliest = now + self.pause_s * jitter
        self.due = self.earliest if wait_s == 0 else now + wait_s * jitter
        self.pause_s = min(self.pause_s * 2, LAST_PAUSE_S)
        self.is_awaited = self.is_requested = False


class ResolvedNames:
    """The servers of a list of targets."""

    def __init__(self, targets: Sequence[Target], draw: Callable[[], float]) -> None:
        """`draw` returns numbers in [0, 1)."""
        self._targets = tuple(targets)
        self._draw = draw
        self._names = {target: _Name(draw()) for target in self._targets if isinstance(target, DnsName)}

    @property
    def has_names(self) -> bool:
        """Whether there is something to resolve."""
        return bool(self._names)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The known servers, each once: addresses as they were given, and those of names. May be empty at first."""
        known: dict[str, None] = {}
        for target in self._targets:
            known.update(dict.fromkeys(self._names[target].addresses if isinstance(target, DnsName) else (target,)))
        return tuple(known)

    def host_of(self, address: str) -> str:
        """The name that this address was resolved from; empty if it was not."""
        return next((name.host for name, it in self._names.items() if address in it.addresses), "")

    @property
    def problem(self) -> str:
        """Which names did not resolve at the last lookup, and why; empty if all did."""
        return "; ".join(f"{name} does not resolve: {it.problem}" for name, it in self._names.items() if it.problem)

    @property
    def next_due(self) -> float:
        """When the next lookup is to begin; inf if none is before another one has ended."""
        return min((it.due for it in self._names.values() if not it.is_awaited), default=inf)

    def request(self, now: float) -> None:
        """The known servers do not answer, or do not know the leader: names are resolved as soon as they may be."""
        for it in self._names.values():
            if not it.is_awaited and (soonest := max(now, it.earliest)) < it.due:
                it.due, it.is_requested = soonest, True

    def begin(self, now: float) -> list[DnsName]:
        """The names whose lookup begins now. Each is to be followed by `resolved` or `failed`."""
        due = [name for name, it in self._names.items() if not it.is_awaited and it.due <= now]
        for name in due:
            self._names[name].is_awaited = True
        return due

    def give_up(self) -> None:
        """All lookups that are under way have ended without a result."""
        for it in self._names.values():
            it.is_awaited = False

    def resolved(self, name: DnsName, found: Iterable[str], now: float) -> bool:
        """The lookup has found these IP addresses. Returns whether the known servers have changed."""
        hosts = sorted(set(found))
        if not hosts:
            self.failed(name, "it has no addresses", now)
            return False
        it = self._names[name]
        if len(hosts) > MAX_ADDRESSES:
            at = int(it.first * len(hosts))
            hosts = (hosts[at:] + hosts[:at])[:MAX_ADDRESSES]
        addresses = tuple(join_host_port(host, name.port) for host in hosts)
        is_news = set(addresses) != set(it.addresses)
        it.addresses, it.problem = addresses, ""
        it.ended(now, self._draw(), wait_s=REFRESH_S, is_news=is_news)
        return is_news

    def failed(self, name: DnsName, problem: str, now: float) -> None:
        """The lookup has failed. It is repeated."""
        it = self._names[name]
        it.problem = problem
        it.is_requested = True
        it.ended(now, self._draw(), wait_s=0, is_news=False)
