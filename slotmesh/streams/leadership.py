"""Which controller a member of the mesh follows, of several of which one leads: pure, for routers and replicas.

Purpose: `ControllerSearch` says which address is tried next, `TermFence` whose announcements count.
Invariants: an announcement under an older term than one that was obeyed is never obeyed, as far as both are of one
generation; each address that is known is tried again after a bounded number of attempts, whoever refers to whom.
Owner: the task that keeps up a member's stream to its controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST_TOLD: Final = 16
"""Addresses that a controller may tell a member of."""
MOST_GENERATIONS: Final = 16
"""Generations whose newest term is remembered."""


class TermFence:
    """The newest term that was obeyed, of each generation."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def obeys(self, generation: str, term: int) -> bool:
        """Whether an announcement counts. From then on none of an older term does. 0: it does not say its term."""
        newest = self._newest.pop(generation, 0)
        if len(self._newest) >= MOST_GENERATIONS:
            del self._newest[next(iter(self._newest))]
        self._newest[generation] = max(newest, term)
        return term == 0 or term >= newest


class ControllerSearch:
    """The controllers that are known, and the one that is tried."""

    def __init__(self, given: Sequence[str]) -> None:
        """`given` are the addresses that the member was started with, at least one."""
        if not given:
            raise ValueError("there is no controller to look for")
        self._given = tuple(dict.fromkeys(given))
        self._told: tuple[str, ...] = ()
        self._current = self._turn = self._given[0]
        """The address that is tried, and that of the round: they differ while a referral is followed."""

    @property
    def current(self) -> str:
        """Where the next attempt goes, or the present one went."""
        return self._current

    @property
    def known(self) -> tuple[str, ...]:
        """Those that are tried one after another: those that were given, then those that a leader has told of."""
        return tuple(dict.fromkeys((*self._given, *self._told)))

    def told(self, addresses: Iterable[str]) -> None:
        """The leader says where controllers are. None says nothing."""
        if told := tuple(dict.fromkeys(addresses))[:MOST_TOLD]:
            self._told = told

    def failed(self) -> None:
        """The attempt came to nothing, or what came of it has ended: the next one's turn."""
        known = self.known
        at = known.index(self._turn) + 1 if self._turn in known else 0
        self._current = self._turn = known[at % len(known)]

    def referred(self, leader: str) -> bool:
        """What was tried says that another controller leads; an empty address: it does not know which.

        Returns whether that one is tried at once. One that was itself referred to is not believed: it is the next one's
        turn, so that controllers which refer to each other do not keep a member from the others.
        """
        if not leader or leader == self._current or self._current != self._turn:
            self.failed()
            return False
        self._current = leader
        return True
