"""Chooses the stream for a call of an endpoint, so that a full stream delays no other requester's calls. Pure.

Purpose: a stream has one window. Calls without a token come from many addresses under one identity, and large payloads
stand beside small ones: each requester, and its large payloads apart, is kept off streams that others have filled.
Invariants: calls of one ordering key that are under way together are on one stream, as their order is that of a stream;
a requester that has few calls is on the first stream, so that calls travel together; one whose own calls fill a stream
stays there. A requester without a call under way takes no memory.
Owner: the calls of one endpoint.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ingress_service.core.peers import Requester

LARGE_BYTES: Final = 256 * 1024
"""A payload of this size counts as another requester's: small ones of the same requester pass it."""
CALL_COST: Final = 2 * 1024
"""What a call counts for beside its payload, bytes: a router's window has 8,192 calls and 16 MiB."""
HEAVY: Final = 1024 * 1024
"""A stream with this many bytes of other calls is avoided: a sixteenth of a window."""

Whose = tuple[Requester, bool]
"""And whether they are the large ones."""


class Chosen(NamedTuple):
    """To be given back."""

    stream: int
    whose: Whose
    cost: int
    ordering_key: str


class StreamChoice:
    """Of one endpoint."""

    __slots__ = ("_homes", "_keys", "_loads", "_most")

    def __init__(self, most: int) -> None:
        """`most`: streams."""
        self._most = most
        self._loads: list[int] = []
        """What is under way on each stream."""
        self._homes: dict[Whose, dict[int, int]] = {}
        """What each has under way on which stream; the one that it is on now comes last."""
        self._keys: dict[str, list[int]] = {}
        """Of ordering keys: the stream, and how many calls are under way."""

    @property
    def is_empty(self) -> bool:
        """No call is under way."""
        return not self._homes and not self._keys and not any(self._loads)

    def take(self, who: Requester, size: int, ordering_key: str) -> Chosen:
        """The stream of the next call, whose arguments have `size` bytes."""
        whose = (who, size >= LARGE_BYTES)
        own = self._homes.setdefault(whose, {})
        keyed = self._keys.get(ordering_key) if ordering_key else None
        stream = self._lightest(own) if keyed is None else keyed[0]
        if ordering_key:
            self._keys.setdefault(ordering_key, [stream, 0])[1] += 1
        cost = size + CALL_COST
        own[stream] = own.pop(stream, 0) + cost
        while len(self._loads) <= stream:
            self._loads.append(0)
        self._loads[stream] += cost
        return Chosen(stream, whose, cost, ordering_key)

    def give(self, chosen: Chosen) -> None:
        """The call has ended."""
        stream, whose, cost, ordering_key = chosen
        self._loads[stream] -= cost
        own = self._homes[whose]
        own[stream] -= cost
        if not own[stream]:
            del own[stream]
            if not own:
                del self._homes[whose]
        if ordering_key:
            keyed = self._keys[ordering_key]
            keyed[1] -= 1
            if not keyed[1]:
                del self._keys[ordering_key]

    def _lightest(self, own: dict[int, int]) -> int:
        """The stream that it is on, while others have little there; else the first such one, or the lightest."""

        def others(stream: int) -> int:
            return (self._loads[stream] if stream < len(self._loads) else 0) - own.get(stream, 0)

        if own and others(at := next(reversed(own))) < HEAVY:
            return at
        streams = range(min(self._most, len(self._loads) + 1))
        light = next((it for it in streams if others(it) < HEAVY), None)
        return min(streams, key=others) if light is None else light
