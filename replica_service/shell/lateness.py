"""Calls of a batch whose time is over before it is their turn.

Purpose: a batch whose calls give their arguments in different ways takes several invocations of its method, one after
another. That the first one may begin is known; before each other one its calls are looked at again.
Invariant: no call begins past its deadline, nor while its link is not fresh.
Owner: shared by all executors.
"""

from __future__ import annotations

from replica_service.core.calls import Run
from replica_service.core.commands import StartBatch
from replica_service.core.verdicts import EXPIRED, UNHEARD
from replica_service.shell.batches import Invocation, OnFailed, invocations
from replica_service.shell.methods import Method


def in_time(
    invocation: Invocation, batch: StartBatch, method: Method, now: float, on_failed: OnFailed
) -> Invocation | None:
    """The invocation without those of its calls that must not begin any more, which fail; None where none is left."""
    late = [part for part in invocation.parts if _is_late(part[0], now)]
    if not late:
        return invocation
    for run, lo, hi in late:
        on_failed(run, lo, hi - lo, EXPIRED if now >= run.deadline else UNHEARD)
    parts = [part for part in invocation.parts if not _is_late(part[0], now)]
    rest = StartBatch(batch.batcher, parts, (), sum(hi - lo for _, lo, hi in parts))
    return next(invocations(rest, method, on_failed), None)


def _is_late(run: Run, now: float) -> bool:
    return now >= run.deadline or now >= run.link.fresh_until
