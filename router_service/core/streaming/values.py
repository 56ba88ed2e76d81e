"""Values of handlers that yield: passed on as they come.

Purpose: turns the values in a frame of a replica into deliveries, one for each caller.
Invariants: a value settles nothing: its call ends later, well or not. Values of calls that have had their outcome are
dropped, as their handlers are told to stop; those of shadows are taken at once, so that they run to their end. Values
of one call keep their order.
Owner: pure function on the replica's state; the scheduler calls it before it looks at outcomes.
"""

from __future__ import annotations

from collections.abc import Iterable

from router_service.core import failures
from router_service.core.calls import Results
from router_service.core.commands import DeliverValues, RouterCommand, TakeValues
from router_service.core.outcomes import CallerOutcomes
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import OPEN, CallerBook


def pass_on(
    replica: RoutedReplica, values: Iterable[Results], outcomes: CallerOutcomes, out: list[RouterCommand]
) -> None:
    """Hands values to their callers. A run id appears once for each value. A value that is too large ends its call."""
    for ids, payloads, content_type in values:
        deliveries: dict[CallerBook, DeliverValues] = {}
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
                out.append(TakeValues(replica, run_id, at - begin))
                continue
            if sent.states is not None and sent.states[offset] != OPEN:
                continue
            if run.options.idempotent:
                sent.note_value(offset)
            given = payloads[begin:at]
            limit = caller.max_value_bytes
            fit = next((place for place, payload in enumerate(given) if len(payload) > limit), len(given))
            if fit:
                delivery = deliveries.get(caller)
                if delivery is None:
                    delivery = DeliverValues(caller, [], [], content_type, replica, [], replica.links)
                    deliveries[caller] = delivery
                    out.append(delivery)
                delivery.ids += [run.ids[sent.lo + offset]] * fit
                delivery.run_ids += [run_id] * fit
                delivery.payloads += given[:fit]
            if fit < len(given):
                failure = failures.value_too_large(len(given[fit]), limit, replica)
                outcomes.abandon(sent, failure, offset, 1)
