"""Which backend has executed each call, as streams that have named the feature `executors` say it.

Invariants: what a peer says is checked against the payloads; a router that says nothing leaves it unknown, which is an
empty name.
"""

from __future__ import annotations

from itertools import repeat, zip_longest
from typing import Any

from slotmesh.client.calls.call_spec import EXECUTED_PAYLOADS, CallSpec
from slotmesh.v1 import call_pb2


def backends_of(batch: call_pb2.ResultBatch, count: int) -> list[str]:
    """The backend of each of so many payloads; nothing where the batch does not say it.

    Raises:
        ValueError: it contradicts itself.
    """
    starts, names = batch.executor_starts[:], batch.backends[:]
    if not starts and not names:
        return []
    if len(starts) != len(names) or starts[0] or sorted({*starts}) != starts or starts[-1] >= count:
        raise ValueError(f"executors of {count} payloads start at {starts[:8]}, and have {len(names)} backends")
    found: list[str] = []
    for name, start, end in zip(names, starts, [*starts[1:], count], strict=True):
        found.extend(repeat(name, end - start))
    return found


def as_wanted(spec: CallSpec, payloads: list[bytes], backends: list[str], start: int, end: int) -> list[Any]:
    """These payloads as those get them who made calls of this kind: each with its backend, or as they are."""
    if spec.wanted is not EXECUTED_PAYLOADS:
        return payloads[start:end]
    return list(zip_longest(payloads[start:end], backends[start:end], fillvalue=""))
