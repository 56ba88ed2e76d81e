"""What handlers set for the answers of calls that came by HTTP: status and headers.

Invariants: one object for a whole batch, which all its runs share, so that calls are told apart by run id; what is set
for an answer is taken once, with the first that is sent of it, and can be set no more from then on.
Owner: made at the edge; handlers set, on any thread, and outcomes take, on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotmesh.wire.http_heads import with_head


class AnswerHeads:
    """Of one batch."""

    __slots__ = ("_begun", "_heads", "_mark")

    def __init__(self, mark: bytes) -> None:
        """`mark`: of the calls' options."""
        self._mark = mark
        self._heads: dict[int, bytes] = {}
        """By run id."""
        self._begun: set[int] = set()

    def put(self, run_id: int, head: bytes) -> bool:
        """Returns whether the answer can still have this: it has not begun."""
        if run_id in self._begun:
            return False
        self._heads[run_id] = head
        return True

    def begin(self, run_id: int, payload: bytes) -> bytes:
        """The next payload that is sent of a call. Returns it with what was set for its answer, if anything was."""
        self._begun.add(run_id)
        head = self._heads.pop(run_id, None)
        return payload if head is None else with_head(payload, head, self._mark)

    def begin_each(self, first: int, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The same, of neighbours that have one payload each."""
        if not self._heads:
            self._begun.update(range(first, first + len(payloads)))
            return payloads
        return [self.begin(run_id, payload) for run_id, payload in enumerate(payloads, first)]
