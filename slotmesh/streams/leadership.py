"""Which controller a member of the mesh follows, of several of which one leads: for routers and replicas. Pure.

Purpose: `ControllerSearch` chooses the address to try next, `TermFence` the announcements to obey.
Invariants: an announcement with an older term than an obeyed one is never obeyed, if both are of one generation; each
known address is tried again after a bounded number of attempts, whatever the referrals.
Owner: the task that keeps up a member's stream to its controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST_ANNOUNCED: Final = 16
"""Addresses that a controller may announce to a member."""
MOST_GENERATIONS: Final = 16
"""Generations whose newest term is remembered."""


class TermFence:
    """The newest term that was obeyed, of each generation."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def obeys(self, generation: str, term: int) -> bool:
        """Whether to obey an announcement; from then on no older term is obeyed. 0: the controller states no term."""
        newest = self._newest.pop(generation, 0)
        if len(self._newest) >= MOST_GENERATIONS:
            del self._newest[next(iter(self._newest))]
        self._newest[generation] = max(newest, term)
        return term == 0 or term >= newest


class ControllerSearch:
    """The known controllers, and the one that is tried."""

    def __init__(self, given: Sequence[str]) -> None:
        """`given` are the addresses that the member was started with. None: `resolved` follows before `current`."""
        self._given: tuple[str, ...] = ()
        self._announced: tuple[str, ...] = ()
        self._current = self._turn = ""
        """The address that is tried, and that of the round: they differ while a referral is followed."""
        self.resolved(given)

    @property
    def current(self) -> str:
        """The address of the next attempt, or of the current one."""
        return self._current

    @property
    def known(self) -> tuple[str, ...]:
        """The addresses that are tried in turn: those that were given, then those that a leader has announced."""
        return tuple(dict.fromkeys((*self._given, *self._announced)))

    def resolved(self, addresses: Iterable[str]) -> None:
        """The names that the member was started with have these addresses now. An empty list changes nothing.

        An attempt that is under way goes on, also at an address that is known no more.
        """
        if given := tuple(dict.fromkeys(addresses)):
            self._given = given
            self._current, self._turn = self._current or given[0], self._turn or given[0]

    def announced(self, addresses: Iterable[str]) -> None:
        """The leader announces the addresses of controllers. An empty list changes nothing."""
        if announced := tuple(dict.fromkeys(addresses))[:MOST_ANNOUNCED]:
            self._announced = announced

    def failed(self) -> None:
        """The attempt failed, or its stream has ended: the next address is tried."""
        known = self.known or ("",)
        at = known.index(self._turn) + 1 if self._turn in known else 0
        self._current = self._turn = known[at % len(known)]

    def referred(self, leader: str) -> bool:
        """The controller that was tried names the leader; empty if it does not know.

        Returns whether the leader is tried immediately. A referral by a controller that was itself referred to is
        ignored, and the next address is tried: controllers that refer to each other must not keep a member from others.
        """
        if not leader or leader == self._current or self._current != self._turn:
            self.failed()
            return False
        self._current = leader
        return True
