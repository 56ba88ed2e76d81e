"""The name of an endpoint as requests have it: bounded before anything looks at it, logs it or repeats it. Pure.

Invariants: every server that clients reach refuses the same names, in the same words.
"""

from __future__ import annotations

from typing import Final

from slotmesh.errors import Failure, bad_field

MAX_ENDPOINT_CHARS: Final = 1024
"""More than the name of any endpoint has."""


def endpoint_mistake(name: str, field: str = "endpoint") -> Failure | None:
    """What is wrong with the name of an endpoint that a request has to have in this field."""
    return overlong_endpoint(name, field) if name else bad_field(field, "is required")


def overlong_endpoint(name: str, field: str = "endpoint") -> Failure | None:
    """The same where the request may leave it out."""
    if len(name) <= MAX_ENDPOINT_CHARS:
        return None
    return bad_field(field, f"at most {MAX_ENDPOINT_CHARS} characters, got {len(name)}")
