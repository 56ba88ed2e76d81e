"""Status and headers of an answer, where its handler has set them. Pure.

Invariants: what would break the answer, or is the ingress's to say, is refused here whatever a replica says; a status
without a body has none; the content type of values that come one by one is that of their framing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingress_service.core.problems import Problem, RequestRefusal
from slotmesh.errors import Executed, Reason
from slotmesh.wire.http_heads import BODILESS, head_problem

HeaderLines = list[tuple[bytes, bytes]]
_OF_FRAMING: Final = frozenset({b"content-type", b"cache-control", b"x-accel-buffering"})


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """As it is sent."""

    status: int = 200
    lines: Sequence[tuple[bytes, bytes]] = ()

    @property
    def has_body(self) -> bool:
        return self.status not in BODILESS

    def with_lines(self, own: HeaderLines) -> HeaderLines:
        """All headers of a whole answer: the handler's go before those that the ingress would say."""
        said = {name for name, _ in self.lines}
        kept = [line for line in own if line[0] not in said] if self.has_body else []
        return [*kept, *self.lines]

    def beside_framing(self) -> HeaderLines:
        """Those of an answer whose values come one by one."""
        return [line for line in self.lines if line[0] not in _OF_FRAMING]


PLAIN: Final = ResponseHead()


def response_head(status: int, headers: Sequence[tuple[str, str]]) -> ResponseHead:
    """What a replica says. Raises RequestRefusal where it cannot be sent."""
    if problem := head_problem(status, headers):
        raise RequestRefusal(
            Problem(
                status=502,
                reason=Reason.INTERNAL.value,
                detail=f"what the handler has set for its answer cannot be sent: {problem}",
                executed=Executed.YES.name.lower(),
            )
        )
    return ResponseHead(status, tuple((name.lower().encode(), value.encode("latin-1")) for name, value in headers))
