"""What ends calls of one router other than a result in the frame: failures, ends without result, large results.

Invariants: consecutive calls that failed alike share an entry, as do those that ended without a result; a frame has at
most `MAX_FRAME_CALLS` of either.
Owner: the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable

from replica_service.shell.links.outgoing_values import OutgoingEnd
from slotmesh.errors import Failure
from slotmesh.id_ranges import ranges_to_wire
from slotmesh.outcome_ids import errors_to_wire
from slotmesh.status import to_wire
from slotmesh.v1 import call_pb2
from slotmesh.wire import ranges
from slotmesh.wire.limits import MAX_FRAME_CALLS


class OutgoingEnds:
    """Ends on their way to one router."""

    __slots__ = ("failures", "large", "without_result")

    def __init__(self) -> None:
        self.failures: list[tuple[list[int], Failure]] = []
        self.without_result: list[ranges.Range] = []
        """Run ids."""
        self.large: list[tuple[int, str, int]] = []
        """Run id, content type and size, bytes, of results whose last chunk has left."""

    @property
    def calls(self) -> int:
        """How many calls have failed, or ended without a result."""
        failed = sum(len(ids) for ids, _ in self.failures)
        return failed + sum(last - first + 1 for first, last in self.without_result)

    def clear(self) -> None:
        self.failures.clear()
        self.without_result.clear()
        self.large.clear()

    def failed(self, first: int, count: int, failure: Failure) -> None:
        """Consecutive calls failed alike."""
        if not self.failures or self.failures[-1][1] != failure:
            self.failures.append(([], failure))
        self.failures[-1][0].extend(range(first, first + count))

    def done(self, first: int, count: int) -> None:
        """Consecutive calls have ended well, without a result."""
        ranges.append(self.without_result, first, first + count - 1)

    def tell(self, ends: Iterable[OutgoingEnd]) -> None:
        """Calls of which values came before have ended."""
        for first, count, failure in ends:
            if failure is None:
                self.done(first, count)
            else:
                self.failed(first, count, failure)

    def fill(self, frame: call_pb2.ResultFrame, calls: int, *, as_range: bool = False) -> None:
        """Puts what fits into the frame, which has results of so many calls. `as_range`: as `errors_to_wire` has it."""
        for run_id, content_type, total in self.large:
            frame.batches.append(
                call_pb2.ResultBatch(
                    call_ids=[run_id], payloads=[b""], content_type=content_type, chunked_sizes=[total]
                )
            )
        calls += len(self.large)
        self.large.clear()
        while self.failures and calls < MAX_FRAME_CALLS:
            ids, failure = self.failures[0]
            part, rest = ids[: MAX_FRAME_CALLS - calls], ids[MAX_FRAME_CALLS - calls :]
            calls += len(part)
            frame.errors.append(errors_to_wire(part, to_wire(failure), as_range=as_range))
            if rest:
                self.failures[0] = (rest, failure)
            else:
                self.failures.pop(0)
        if self.without_result:
            frame.done.extend(ranges_to_wire(self.without_result[:MAX_FRAME_CALLS]))
            del self.without_result[:MAX_FRAME_CALLS]
