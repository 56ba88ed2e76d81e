"""The replica's instruments: what the engine counts anyway, read when somebody scrapes."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from replica_service.shell.engine import Engine
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import histogram, observe_counter, observe_gauge

_HELD_TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def observe(meter: Meter, engine: Engine, backend: str) -> None:
    """Exports the engine's counters and its load. Call it on the event loop."""
    counters, scheduler, slots = engine.counters, engine.scheduler, engine.scheduler.slots
    observe_counter(meter, names.REPLICA_CALLS, lambda: {(backend,): counters.calls})
    observe_counter(
        meter,
        names.REPLICA_FAILURES,
        lambda: {(backend, reason.value): count for reason, count in counters.failures.items()},
    )
    observe_counter(meter, names.REPLICA_BATCHES, lambda: {(backend,): counters.batches})
    observe_gauge(meter, names.REPLICA_ONGOING, lambda: {(backend,): scheduler.in_use})
    observe_gauge(meter, names.REPLICA_WAITING, lambda: {(backend,): scheduler.waiting + scheduler.keyed})
    observe_gauge(meter, names.REPLICA_SLOTS_RESERVED, lambda: {(backend,): slots.reserved})
    observe_counter(
        meter,
        names.REPLICA_RESERVATIONS,
        lambda: {(backend, outcome.value): count for outcome, count in engine.slots.reservations.items()},
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
    sizes = histogram(meter, names.REPLICA_BATCH_SIZE, _BATCH_SIZES)
    attributes = {names.BACKEND: backend}
    counters.on_batch = lambda count: sizes.record(count, attributes)
    held_times = histogram(meter, names.REPLICA_SLOT_HELD_TIME, _HELD_TIMES_S)
    engine.slots.on_dispatch = lambda held_s: held_times.record(held_s, attributes)
