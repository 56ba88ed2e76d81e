"""Mistakes of a request as INVALID_ARGUMENT, with BadRequest details that name each of them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import InvalidSpec, Mistake
from slotmesh.spec.rules import show
from slotmesh.status import FIELDS_TEXT_BYTES, abort
from slotmesh.suggestions import did_you_mean

Context = grpc.aio.ServicerContext[Any, Any]
ServicerT = TypeVar("ServicerT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_MOST_NAMED: Final = 20
"""Replicas and backends that an error names, at most."""
_LAST_LINE_BYTES: Final = 64
"""Room for the line that says how many mistakes were left out."""


def names_all_mistakes(
    rpc: Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]],
) -> Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]]:
    """An rpc whose InvalidSpec becomes INVALID_ARGUMENT with a field violation for each mistake."""

    @functools.wraps(rpc)
    async def telling(self: ServicerT, request: RequestT, context: Context) -> ResponseT:
        try:
            return await rpc(self, request, context)
        except InvalidSpec as invalid:
            told = _those_that_fit(invalid.mistakes)
            lines = [str(mistake) for mistake in told]
            if unsaid := len(invalid.mistakes) - len(told):
                lines.append(f"and {unsaid} more mistakes")
            failure = Failure(reason=Reason.BAD_REQUEST, message="\n".join(lines))
            await abort(context, failure, [(mistake.path, mistake.message) for mistake in told])

    return telling


def _those_that_fit(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """The first mistakes: texts of violations take `FIELDS_TEXT_BYTES` at most, percent-encoded."""
    told: list[Mistake] = []
    left = FIELDS_TEXT_BYTES - _LAST_LINE_BYTES
    for mistake in mistakes:
        left -= len(quote(f"{mistake}\n", safe=" "))
        if left < 0:
            break
        told.append(mistake)
    return told


def logs_not_found(name: str, known: Sequence[str] | None) -> Failure:
    """No output is known under that name. `known` has those that there are; None: this controller starts none."""
    if known is None:
        way_out = "; this controller starts none: look where they are started"
    else:
        those = ", ".join([*known[:_MOST_NAMED], *["…"][: len(known) > _MOST_NAMED]])
        way_out = did_you_mean(name, known) or (f"; there is that of {those}" if known else "; there is none yet")
    text = f"no output is known of a replica or a backend {show(name)!r}{way_out}"
    return Failure(reason=Reason.REPLICA_NOT_FOUND, message=text)
