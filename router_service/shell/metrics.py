"""What the router exports: the scheduler's own counters, read when somebody scrapes."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from router_service.core.scheduler import Scheduler
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge


def observe(meter: Meter, scheduler: Scheduler) -> None:
    """Registers the router's instruments."""
    counters, topology = scheduler.counters, scheduler.topology
    observe_counter(meter, names.ROUTER_CALLS, lambda: counters.calls)
    observe_counter(meter, names.ROUTER_FAILURES, lambda: counters.failures)
    observe_counter(meter, names.ROUTER_REFUSALS, lambda: counters.refusals)
    observe_counter(meter, names.ROUTER_LINK_FAILURES, lambda: counters.link_failures)
    observe_counter(meter, names.ROUTER_FRAMES, lambda: counters.frames)
    observe_gauge(meter, names.ROUTER_STREAMS, lambda: {(): counters.streams})
    observe_gauge(
        meter, names.ROUTER_QUEUED, lambda: {(each.name,): each.account.calls for each in topology.backends.values()}
    )
    observe_gauge(
        meter, names.ROUTER_ONGOING, lambda: {(each.name,): each.ongoing for each in topology.backends.values()}
    )
