"""Whether a run counts: its load was reached before the first fault, and each fault hit something. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.history.model import History, Load, Violation

BEFORE_S: Final = 1.0
"""The stretch before the first fault in which the load has to be there, seconds."""


def check_load(history: History, load: Load) -> Iterator[Violation]:
    """The stated load was reached in the second before the first fault."""
    first = min((fault.at for fault in history.faults), default=None)
    if first is None:
        yield Violation(invariant="load", text="there was no fault: the run proves nothing")
        return
    clients = {call.tag: call.client for call in history.calls}
    before = [it for it in history.outcomes if first - BEFORE_S <= it.at < first]
    served = {clients[it.tag] for it in before if it.tag in clients}
    if len(before) < load.outcomes_per_s * BEFORE_S / history.patience or len(served) < load.clients:
        text = (
            f"in the {BEFORE_S:g} s before the first fault, at {history.since_start(first)}, {len(served)} clients got "
            f"{len(before)} outcomes; the run counts only with {load.clients} and {load.outcomes_per_s:g}/s"
        )
        yield Violation(invariant="load", text=text)


def check_faults(history: History) -> Iterator[Violation]:
    """Each fault was seen to happen, while calls were unanswered."""
    heard_at = {outcome.tag: outcome.at for outcome in history.outcomes}
    for fault in history.faults:
        when = history.since_start(fault.at)
        if not fault.seen:
            yield Violation(invariant="fault", text=f"{fault.what} at {when}: nobody saw that it happened")
        if not any(it.sent_at <= fault.at < heard_at.get(it.tag, float("inf")) for it in history.calls):
            yield Violation(invariant="fault", text=f"{fault.what} at {when}: no call was unanswered then")
