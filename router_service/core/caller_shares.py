"""What each known caller has in flight at this router, over all of its streams and unary rpcs.

Invariants: what a share has taken is given back when its calls' outcomes have left, or when its stream or rpc ends. Who
is not known has no share. Asked once a batch, never once a call.
Owner: the edge makes shares; callers take and give.
"""

from __future__ import annotations

from slotmesh.errors import Failure
from slotmesh.security.quotas import Quota, QuotaKind

MAX_CALLS = 131_072
"""Unanswered calls of one caller: the windows of sixteen streams."""
MAX_BYTES = 256 * 1024 * 1024
"""Payload bytes of these."""
MAX_KEYS = 65_536
"""Ordering keys of one caller of which it is known where they have stopped."""


class CallQuotas:
    """The quotas of calls, of one router."""

    def __init__(self, max_calls: int = MAX_CALLS, max_bytes: int = MAX_BYTES) -> None:
        self.calls = Quota(QuotaKind.CALLS, max_calls, "max_calls_per_caller")
        self.bytes = Quota(QuotaKind.BYTES, max_bytes, "max_bytes_per_caller")
        self.keys = Quota(QuotaKind.KEYS, MAX_KEYS, "fixed")

    def share_of(self, who: str) -> CallerShare | None:
        """The share of the caller of this name; None where it has none: nothing is counted."""
        return CallerShare(self, who) if who else None


class CallerShare:
    """One caller's, as one of its streams or rpcs sees it."""

    __slots__ = ("_quotas", "_who")

    def __init__(self, quotas: CallQuotas, who: str) -> None:
        self._quotas = quotas
        self._who = who

    @property
    def who(self) -> str:
        """The name of the caller."""
        return self._who

    def refusal(self, calls: int, size: int) -> Failure | None:
        """Why the caller may not have so many calls, with `size` payload bytes, more; None where it may."""
        quotas, who = self._quotas, self._who
        return quotas.calls.refusal(who, calls) or quotas.bytes.refusal(who, size)

    def take(self, calls: int, size: int) -> None:
        """It has them."""
        self._quotas.calls.take(self._who, calls)
        self._quotas.bytes.take(self._who, size)

    def give(self, calls: int, size: int) -> None:
        """It has them no longer."""
        self._quotas.calls.give(self._who, calls)
        self._quotas.bytes.give(self._who, size)

    @property
    def has_room_for_key(self) -> bool:
        """Whether of one more ordering key it may be remembered that it has stopped."""
        return not self._quotas.keys.is_full(self._who)

    def take_key(self) -> None:
        """Of one more it is remembered."""
        self._quotas.keys.take(self._who)

    def give_keys(self, count: int) -> None:
        """Of so many it is forgotten."""
        self._quotas.keys.give(self._who, count)
