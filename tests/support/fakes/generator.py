"""A handler that yields, behind the fake router: it runs ahead of its caller by a credit, and waits then.

Invariant: it is stepped only while it is less than 256 values and 1 MiB ahead.
Owner: the `FakeStream` of its call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from slotmesh.errors import Failure

CREDIT_VALUES = 256
CREDIT_BYTES = 1024 * 1024


class FakeGenerator:
    """What is left to yield. A `Failure` among the values ends it."""

    def __init__(self, values: Iterable[bytes | Failure], content_type: str = "") -> None:
        self.content_type = content_type
        self._values: Iterator[bytes | Failure] = iter(values)
        self._ahead: deque[int] = deque()
        """Sizes of the values that were not taken."""
        self.stepped = 0
        self.is_over = False
        self.failure: Failure | None = None

    def run(self) -> list[bytes]:
        """The values up to where it has to wait."""
        values: list[bytes] = []
        while not self.is_over and len(self._ahead) < CREDIT_VALUES and sum(self._ahead) < CREDIT_BYTES:
            value = next(self._values, None)
            if isinstance(value, bytes):
                self.stepped += 1
                self._ahead.append(len(value))
                values.append(value)
            else:
                self.is_over, self.failure = True, value
        return values

    def take(self, count: int) -> bool:
        """So many values were taken. False where there were not so many."""
        for _ in range(min(count, len(self._ahead))):
            self._ahead.popleft()
            count -= 1
        return not count
