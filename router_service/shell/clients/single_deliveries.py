"""Deliveries of several calls, or values, one by one.

Purpose: where a call or a value has to be treated by itself.
Owner: the caller's stream, or its unary call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from router_service.core.commands import DeliverResults, DeliverValues, Delivery


def values_singly(values: DeliverValues) -> Iterator[DeliverValues]:
    """The same, a value each."""
    for call_id, run_id, payload in zip(values.ids, values.run_ids, values.payloads, strict=True):
        yield replace(values, ids=[call_id], run_ids=[run_id], payloads=[payload])


def singly(delivery: Delivery) -> Iterator[Delivery]:
    """The same, a call or a value each. The first carries what the window gets back."""
    if isinstance(delivery, DeliverValues):
        yield from values_singly(delivery)
        return
    for at in range(len(delivery.ids)):
        first = delivery.first + at if delivery.first else 0
        size = 0 if at else delivery.size
        part = replace(delivery, ids=delivery.ids[at : at + 1], size=size, first=first)
        if isinstance(part, DeliverResults):
            part.payloads = part.payloads[at : at + 1]
        yield part


def results_singly(outcome: DeliverResults) -> Iterator[DeliverResults]:
    """The same, a call each."""
    for at, payload in enumerate(outcome.payloads):
        size = 0 if at else outcome.size
        yield replace(outcome, ids=outcome.ids[at : at + 1], payloads=(payload,), size=size, first=outcome.first + at)
