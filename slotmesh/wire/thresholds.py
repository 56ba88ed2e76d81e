"""How much of a bound one holder may have: a multiple of what it leaves free. Pure.

Purpose: alone a holder has most of the bound; several that want more have equal parts; and there is always room for one
more. No holder has to be known before, and none is a reserve for others that do not come.
Source: A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
Transactions on Networking 6 (2), 1998.
"""

from __future__ import annotations

from typing import NamedTuple


class DynamicThreshold(NamedTuple):
    """A holder may have `times / per` of what is free then."""

    times: int = 1
    per: int = 1

    def allows(self, held: int, free: int) -> bool:
        """Whether a holder may have `held` where `free` is left beside that."""
        return self.per * held <= self.times * free

    def room(self, held: int, free: int) -> int:
        """The most that a holder of `held` may add while `free` is left: it takes that from what is free.

        Negative if it has more than it may.
        """
        return (self.times * free - self.per * held) // (self.times + self.per)
