"""Calls of a batch that become overdue before it is their turn.

Purpose: a batch whose calls give their arguments in different ways takes several invocations of its method, one after
another. The batch was claimed for the first one; before each other one its calls are checked again.
Invariant: no call begins past its deadline, nor while its link is not fresh.
Owner: shared by all executors.
"""

from __future__ import annotations

from replica_service.core.commands import StartBatch
from replica_service.core.starting.claims import too_late
from replica_service.shell.executors.batch_invocations import Invocation, OnFailed, invocations
from replica_service.shell.handler.methods import HandlerMethod


def in_time(
    invocation: Invocation, batch: StartBatch, method: HandlerMethod, now: float, on_failed: OnFailed
) -> Invocation | None:
    """The invocation without those of its calls that must not begin any more, which fail; None where none is left."""
    parts = []
    for part in invocation.parts:
        run, lo, hi = part
        if (failure := too_late(run, now)) is not None:
            on_failed(run, lo, hi - lo, failure)
        else:
            parts.append(part)
    if len(parts) == len(invocation.parts):
        return invocation
    rest = StartBatch(batch.batcher, parts, (), sum(hi - lo for _, lo, hi in parts))
    return next(invocations(rest, method, on_failed), None)
