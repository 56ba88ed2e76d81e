"""Which method an inference calls, from what replicas have told of their methods. Pure.

Invariant: routers and ingresses choose alike, and refuse in the same words.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from slotmesh.errors import Executed, Failure, Reason

DEFAULT_METHOD: Final = "infer"
CALL: Final = "__call__"
_SHOWN: Final = 8


def method_of_inference(endpoint: str, told: AbstractSet[str]) -> str | Failure:
    """The method where the request names none: `infer`, or the only one, or `__call__`.

    `told`: the methods of the endpoint; empty where no replica has told any, and then it is `infer`.
    """
    if not told or DEFAULT_METHOD in told:
        return DEFAULT_METHOD
    if len(told) == 1:
        return next(iter(told))
    if CALL in told:
        return CALL
    return Failure(
        reason=Reason.METHOD_NOT_FOUND,
        message=f"parameters.method: {endpoint} has no method infer, and several others: name one of "
        f"{', '.join(sorted(told)[:_SHOWN])}",
        executed=Executed.NO,
        metadata={"endpoint": endpoint, "field": "parameters.method"},
    )


def has_many_results(method: str, way_out: str) -> Failure:
    """Of a method that yields, where there is room for one result only."""
    return Failure(
        reason=Reason.NOT_IMPLEMENTED, message=f"{method} yields, and has any number of results: use {way_out}"
    )
