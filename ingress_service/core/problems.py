"""Failures as problem documents (RFC 9457), and the status and headers that a handler has set. Pure.

Invariants: each answer that is no result has a problem; it has the words of the failure, and never a traceback, a
payload or a token; `executed` states whether the call ran.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from slotmesh.calls.result_envelopes import BODILESS, head_problem
from slotmesh.errors import Executed, Reason, SlotmeshError
from slotmesh.http_status import http_status, title_of
from slotmesh.oip.http import error_to_json

MEDIA_TYPE: Final = b"application/problem+json"
TYPE_PREFIX: Final = "urn:slotmesh:problem:"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The document that is sent in place of a result."""

    status: int
    reason: str
    detail: str
    executed: str = "no"
    log_ref: str = ""
    request_id: str = ""
    """Of the request that it answers; empty: it is not sent."""
    retry_delay_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    """Beside Retry-After."""

    def document(self) -> dict[str, Any]:
        """The members, in this order."""
        members: dict[str, Any] = {
            "type": f"{TYPE_PREFIX}{self.reason.lower().replace('_', '-')}",
            "title": title_of(self.status),
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason,
            "executed": self.executed,
        }
        return {**members, **self._found_by()}

    def body(self) -> bytes:
        return json.dumps(self.document(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    def error(self) -> bytes:
        """The same as clients of the Open Inference Protocol read it."""
        return error_to_json(self.detail, self.reason, self.executed, **self._found_by())

    def _found_by(self) -> dict[str, str]:
        """What to look for in the logs."""
        named = {"log_ref": self.log_ref, "request_id": self.request_id}
        return {name: text for name, text in named.items() if text}

    def header_lines(self, media_type: bytes = MEDIA_TYPE) -> list[tuple[bytes, bytes]]:
        """Those of the answer, but for its length."""
        lines = [(b"content-type", media_type)]
        lines += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.retry_delay_s is not None:
            lines.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_delay_s))))
        return lines


class RequestRefusal(Exception):
    """A request is answered with a problem, and was no call, or is none any more."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def refusal(
    status: int, detail: str, reason: Reason = Reason.BAD_REQUEST, *, retry_delay_s: float | None = None, **headers: str
) -> RequestRefusal:
    """What the ingress itself refuses: nothing was executed."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestRefusal(
        Problem(status=status, reason=reason.value, detail=detail, retry_delay_s=retry_delay_s, headers=named)
    )


def problem_of(error: SlotmeshError) -> Problem:
    """A failure of the mesh, or of a handler."""
    status = http_status(error.status, error.reason, error.executed)
    _, _, words = str(error).partition(": ")
    return Problem(
        status=status,
        reason=error.reason.value,
        detail=words or str(error),
        executed=error.executed.name.lower(),
        log_ref=error.metadata.get("log_ref", ""),
        retry_delay_s=error.retry_delay_s,
        headers={"www-authenticate": "Bearer"} if status == 401 else _NO_HEADERS,
    )


INTERNAL: Final = Problem(
    status=500,
    reason=Reason.INTERNAL.value,
    detail="the ingress failed; its log has it",
    executed=Executed.UNKNOWN.name.lower(),
)


HeaderLines = list[tuple[bytes, bytes]]
_OF_FRAMING: Final = frozenset({b"content-type", b"cache-control", b"x-accel-buffering"})


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of an answer, where its handler has set them.

    A header that would break the answer, or that is the ingress's own, is refused. A status without a body has none.
    The content type of values that are sent one by one is that of their framing.
    """

    status: int = 200
    lines: Sequence[tuple[bytes, bytes]] = ()

    @property
    def has_body(self) -> bool:
        return self.status not in BODILESS

    def with_lines(self, own: HeaderLines) -> HeaderLines:
        """All headers of a whole answer: the handler's replace the ingress's own of the same name."""
        own_names = {name for name, _ in self.lines}
        kept = [line for line in own if line[0] not in own_names] if self.has_body else []
        return [*kept, *self.lines]

    def beside_framing(self) -> HeaderLines:
        """Those of an answer whose values come one by one."""
        return [line for line in self.lines if line[0] not in _OF_FRAMING]


PLAIN: Final = ResponseHead()


def response_head(status: int, headers: Sequence[tuple[str, str]]) -> ResponseHead:
    """The head that a replica has sent. Raises RequestRefusal if it cannot be sent on."""
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
