"""Calls that yield several values, or take several requests: passes both on between replicas and callers.

Invariants: a value settles nothing: its call ends later. Values of one call keep their order; values of calls that have
their outcome are dropped, as their handlers are being stopped; values of shadows count as taken on arrival, so that
shadows run to their end. Nothing is passed on for calls that have their outcome.
Owner: the scheduler; `Caller.streams` has the calls whose values may be under way.
"""

from __future__ import annotations

from router_service.core import failures
from router_service.core.commands import DeliverTaken, DeliverValues, Step, TakeValues
from router_service.core.events import RequestsTaken, RunsCompleted, StreamedOutcomesLeft
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.runs import OPEN, Caller


class Streaming(Feature):
    """Replicas identify calls by run id, callers by call id."""

    def __init__(self, outcomes: CallerOutcomes) -> None:
        self._outcomes = outcomes

    def yielded(self, event: RunsCompleted, step: Step) -> None:
        """Hands values to their callers; a run id appears once for each. A value that is too large ends its call."""
        replica = event.replica
        for ids, payloads, content_type in event.values or ():
            deliveries: dict[Caller, DeliverValues] = {}
            at, end = 0, len(ids)
            while at < end:
                run_id, begin = ids[at], at
                while at < end and ids[at] == run_id:
                    at += 1
                sent = replica.inflight.get(run_id) or replica.inflight.covering(run_id)
                if sent is None:
                    continue
                run, offset, caller = sent.run, run_id - sent.first, sent.run.caller
                if run.shadow_of is not None or run.options.no_reply or not run.options.streaming:
                    step.commands.append(TakeValues(replica, run_id, at - begin))
                    continue
                if sent.states is not None and sent.states[offset] != OPEN:
                    continue
                sent.note_begun(offset)
                given = payloads[begin:at]
                limit = caller.max_value_bytes
                fit = next((place for place, payload in enumerate(given) if len(payload) > limit), len(given))
                if fit:
                    delivery = deliveries.get(caller)
                    if delivery is None:
                        delivery = DeliverValues(caller, [], [], content_type, replica, [], replica.links)
                        deliveries[caller] = delivery
                        step.commands.append(delivery)
                    delivery.ids += [run.ids[sent.lo + offset]] * fit
                    delivery.run_ids += [run_id] * fit
                    delivery.payloads += given[:fit]
                if fit < len(given):
                    failure = failures.value_too_large(len(given[fit]), limit, replica)
                    self._outcomes.abandon(sent, failure, step, offset, 1)

    def taken(self, event: RequestsTaken, step: Step) -> None:
        """Handlers have begun, or have taken requests: their callers are informed of how many."""
        replica = event.replica
        for run_id, count in event.taken:
            sent = replica.inflight.get(run_id) or replica.inflight.covering(run_id)
            if sent is None or not sent.run.options.takes_requests:
                continue
            offset = run_id - sent.first
            if sent.states is None or sent.states[offset] == OPEN:
                sent.note_begun(offset)
                step.commands.append(DeliverTaken(sent.run.caller, replica, run_id, count, replica.links))

    def outcomes_left(self, event: StreamedOutcomesLeft, _step: Step) -> None:
        """The credit of these calls is their caller's again."""
        for call_id in event.ids:
            event.caller.streams.pop(call_id, None)
