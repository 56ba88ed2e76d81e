"""One bound that many share: one holder cannot take all of it, and newcomers find a reserve. Pure.

Purpose: for totals (bytes, requests, connections), where quotas of known callers do not determine how much is left for
the others.
Invariants: `total` is the sum of `held`; a holder that has something gets no more once it has its share; above `most`
only holders get anything that have `floor` at most, and all of these together get `reserve`. A holder with
nothing is not kept here. Each amount taken is given back exactly once, by the code that took it.
Owner: the component that counts; one object for each bound.
"""

from __future__ import annotations

from enum import Enum, auto
from math import ceil
from typing import Final, Generic, NamedTuple, Self, TypeVar


class DynamicThreshold(NamedTuple):
    """A holder may have a multiple of what it leaves free: `times / per`.

    A single holder has most of the bound; several that want more have equal parts; and there is always room for one
    more. Holders need not be known before, and nothing is reserved for others that do not come.
    Source: A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
    IEEE/ACM Transactions on Networking 6 (2), 1998.
    """

    times: int = 1
    per: int = 1

    def allows(self, held: int, free: int) -> bool:
        """Whether a holder may have `held` while `free` is left beside that."""
        return self.per * held <= self.times * free

    def room(self, held: int, free: int) -> int:
        """The most that a holder of `held` may add while `free` is left: it takes that from what is free.

        Negative if it has more than it may.
        """
        return (self.times * free - self.per * held) // (self.times + self.per)


SHARE: Final = 0.75
"""Of a bound, for one holder that has several things."""
RESERVE: Final = 0.125
"""Of a bound, for holders that have little."""

HolderT = TypeVar("HolderT")


class Over(Enum):
    """Why a holder gets no more."""

    SHARE = auto()
    """The holder has as much as one may have."""
    ALL = auto()
    """All together have as much as there is."""


class FairBound(Generic[HolderT]):
    """What each holder has of one thing."""

    __slots__ = ("floor", "held", "most", "reserve", "share", "total")

    def __init__(self, most: int, *, share: int, reserve: int, floor: int) -> None:
        """`most`: for all; `share`: for one that has several; `reserve`: beyond `most`, for those that have `floor`."""
        self.most = most
        self.share = share
        self.reserve = reserve
        self.floor = floor
        self.held: dict[HolderT, int] = {}
        self.total = 0

    @classmethod
    def within(cls, most: int, floor: int) -> Self:
        """A bound that all together never pass: the reserve is part of it."""
        reserve = int(RESERVE * most)
        return cls(most - reserve, share=max(1, ceil(SHARE * most)), reserve=reserve, floor=floor)

    @classmethod
    def beyond(cls, most: int, floor: int) -> Self:
        """A bound that newcomers may pass, by the reserve."""
        return cls(most, share=int(SHARE * most), reserve=max(floor, int(RESERVE * most)), floor=floor)

    def over(self, who: HolderT, amount: int, own: int = 0, *, has_share: bool = True) -> Over | None:
        """Why `who` may not have `amount` more; None if it may.

        `own`: what it has already of the one thing that would grow: the share does not limit a holder of one thing.
        `has_share` False: `who` stands for many holders, to which no share applies.
        """
        held = self.held.get(who, 0) + amount
        if has_share and held > self.share and held - amount > own:
            return Over.SHARE
        room = self.most + self.reserve if held <= self.floor else self.most
        return Over.ALL if self.total + amount > room else None

    def take(self, who: HolderT, amount: int) -> None:
        """Adds `amount` to the holder."""
        if not amount:
            return
        self.held[who] = self.held.get(who, 0) + amount
        self.total += amount

    def give(self, who: HolderT, amount: int) -> None:
        """Takes `amount` from the holder."""
        if not amount:
            return
        if left := self.held[who] - amount:
            self.held[who] = left
        else:
            del self.held[who]
        self.total -= amount
