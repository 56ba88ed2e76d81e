"""How handlers that yield get to go on: what one caller has taken of the values of its calls.

Purpose: a replica lets a handler run a credit ahead of who takes its values (256 of them, or 1 MiB). This is where the
values of one caller are counted, and taken once they were written: by a client that says so itself, or for one that
does not.
Invariants: no more is taken of a call than was written to its caller, whatever that one says; so what waits for it here
is at most the credit of each call. Nothing is remembered of a call that has ended.
Owner: the caller's stream, or its unary call.
"""

from __future__ import annotations

from collections.abc import Iterable

from router_service.core.commands import DeliverValues
from router_service.core.replicas import Replica
from router_service.shell.dispatcher import Dispatcher

TAKE_VALUES = 64
TAKE_BYTES = 256 * 1024
"""Values are taken for a caller that does not say so itself when either is reached. A quarter of the credit: frames are
few, and no handler waits for what was written long ago."""


class Taking:
    """The calls of one caller whose values have begun to leave."""

    def __init__(self, dispatcher: Dispatcher, *, by_caller: bool = False) -> None:
        """`by_caller`: it says itself what it has taken."""
        self._dispatcher = dispatcher
        self._by_caller = by_caller
        self.calls: dict[int, _Call] = {}
        """Empty where there are none: all other calls cost nothing here."""
        self._leaving: list[DeliverValues] = []

    def leave(self, values: DeliverValues) -> None:
        """These values are being written."""
        for call_id, run_id in zip(values.ids, values.run_ids, strict=True):
            call = self.calls.get(call_id)
            if call is None:
                call = self.calls[call_id] = _Call(values.replica, values.links, run_id)
            # Counted before the write has ended: the caller may say that it has taken them before this side knows.
            call.values += self._by_caller
        if not self._by_caller:
            self._leaving.append(values)

    def written(self) -> None:
        """All that was being written has been."""
        if not self._leaving:
            return
        for values in self._leaving:
            for call_id, payload in zip(values.ids, values.payloads, strict=True):
                if (call := self.calls.get(call_id)) is None:
                    continue
                call.values += 1
                call.size += len(payload)
                if call.values >= TAKE_VALUES or call.size >= TAKE_BYTES:
                    self._dispatcher.take(call.replica, call.links, call.run_id, call.values)
                    call.values = call.size = 0
        self._leaving.clear()

    def take(self, ids: Iterable[int], counts: Iterable[int]) -> None:
        """The caller has taken so many values of each of these calls."""
        if not self._by_caller:
            return
        for call_id, count in zip(ids, counts, strict=False):
            call = self.calls.get(call_id)
            if call is not None and (count := min(count, call.values)) > 0:
                call.values -= count
                self._dispatcher.take(call.replica, call.links, call.run_id, count)

    def take_all(self) -> None:
        """The caller can say no more: from now on values are taken when they were written."""
        if self._by_caller:
            self._by_caller = False
            for call in self.calls.values():
                if call.values:
                    self._dispatcher.take(call.replica, call.links, call.run_id, call.values)
                    call.values = 0

    def ended(self, ids: Iterable[int]) -> None:
        """These calls have their outcome. Called while there are any."""
        for call_id in ids:
            self.calls.pop(call_id, None)


class _Call:
    """Where the values of one call come from, and what was written of them and not taken."""

    __slots__ = ("links", "replica", "run_id", "size", "values")

    def __init__(self, replica: Replica, links: int, run_id: int) -> None:
        self.replica = replica
        self.links = links
        self.run_id = run_id
        self.values = 0
        self.size = 0
        """Bytes of these values; counted only where they are taken for the caller."""
