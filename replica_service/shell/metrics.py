"""The replica's instruments: numbers that the engine counts in any case, read at each scrape."""

from __future__ import annotations

from replica_service.shell.engine import Engine
from replica_service.shell.handler.models import HandlerModels
from replica_service.shell.slots import ReservationEnd
from replica_service.shell.stopping import Fencing
from slotmesh.histogram import Histogram
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, observe_counter, observe_gauge
from slotmesh.telemetry.setup import MetricsServer

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def observe_models(metrics: MetricsServer, models: HandlerModels, backend: str) -> None:
    """Exports what the handler loads by id."""
    meter, counts = metrics.meter, models.counts
    observe_gauge(meter, names.REPLICA_MODELS, lambda: {(backend,): models.loaded})
    observe_counter(meter, names.REPLICA_MODEL_HITS, lambda: {(backend,): sum(it.hits for it in counts)})
    observe_counter(meter, names.REPLICA_MODEL_UNLOADS, lambda: {(backend,): sum(it.unloads for it in counts)})
    observe_counter(meter, names.REPLICA_MODEL_LOAD_TIME, lambda: {(backend,): sum(it.load_s for it in counts)})
    observe_counter(
        meter,
        names.REPLICA_MODEL_LOADS,
        lambda: {
            (backend, "ok"): sum(it.loads for it in counts),
            (backend, "failed"): sum(it.failed_loads for it in counts),
        },
    )


def observe(metrics: MetricsServer, engine: Engine, backend: str, fencing: Fencing | None = None) -> None:
    """Exports the engine's counters and its load. Call it on the event loop."""
    meter = metrics.meter
    if fencing is not None:
        observe_gauge(meter, names.REPLICA_FENCE, lambda: {(backend,): fencing.left_s})
    counters, scheduler, slots = engine.counters, engine.scheduler, engine.scheduler.slots
    observe_counter(meter, names.REPLICA_CALLS, lambda: {(backend,): counters.calls})
    observe_counter(
        meter,
        names.REPLICA_FAILURES,
        lambda: {(backend, reason.value): count for reason, count in counters.failures.items()},
    )
    observe_counter(meter, names.REPLICA_DEFECTS, lambda: {(backend,): counters.defects})
    observe_counter(meter, names.REPLICA_BATCHES, lambda: {(backend,): counters.batches})
    observe_gauge(meter, names.REPLICA_BATCH_AGE, lambda: {(backend,): engine.batch_hosts.oldest_s()})
    observe_counter(meter, names.REPLICA_BLOCKS, lambda: {(backend,): counters.blocks})
    observe_counter(meter, names.REPLICA_BLOCKED_TIME, lambda: {(backend,): counters.blocked_s})
    observe_gauge(meter, names.REPLICA_ONGOING, lambda: {(backend,): scheduler.in_use})
    observe_gauge(meter, names.REPLICA_WAITING, lambda: {(backend,): scheduler.waiting + scheduler.keyed})
    observe_gauge(meter, names.REPLICA_SLOTS_RESERVED, lambda: {(backend,): slots.reserved})
    observe_counter(
        meter,
        names.REPLICA_RESERVATIONS,
        lambda: {(backend, each.value): engine.slots.reservations[each] for each in ReservationEnd},
    )
    observe_counter(
        meter,
        names.REPLICA_SLOTS,
        lambda: {
            (backend, "dispatched"): slots.dispatched,
            (backend, "released"): slots.released,
            (backend, "expired"): slots.expired,
        },
    )
    sizes = Histogram(_BATCH_SIZES)
    counters.on_batch = lambda count: sizes.observe(count, 1)
    metrics.observe_histogram(
        names.REPLICA_BATCH_SIZE, lambda: {(backend,): Buckets.of(sizes)} if any(sizes.counts) else {}
    )
    times = scheduler.call_times
    metrics.observe_histogram(names.REPLICA_CALL_TIME, lambda: {(backend,): Buckets.of(times.runs)})
    metrics.observe_histogram(names.REPLICA_WAIT_TIME, lambda: {(backend,): Buckets.of(times.waits)})
    metrics.observe_histogram(names.REPLICA_SLOT_HELD_TIME, lambda: {(backend,): Buckets.of(slots.held_times)})
