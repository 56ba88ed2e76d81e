"""A call's payload says which call it is, and its result is its payload: mixed-up results are seen."""

from __future__ import annotations


def payload_of(call: int) -> bytes:
    return call.to_bytes(8, "little")


def call_of(payload: bytes) -> int:
    return int.from_bytes(payload, "little")
