"""Frames <-> domain values, converted once per frame or batch, never once per call.

Invariants: protobuf messages do not pass this edge inwards; equal options are converted once and then looked up.
"""

from router_service.convert.options import (
    OptionsByKey,
    ShownMetadata,
    options_from_wire,
    options_of_rpc,
    partitions_of,
    with_relative_slo,
    with_request,
)
from router_service.convert.runs import (
    add_batch,
    capacity_from_wire,
    evicted_of,
    failures_of,
    handler_state_of,
    ids_of,
    payloads_of,
    result_too_large,
    results_of,
    results_problem,
    taken_of,
    takes_to_wire,
    tensors_of,
    times_of,
    too_large,
    traces_of,
    values_of,
)
from router_service.convert.sessions import (
    first_roster_of,
    found_of,
    reconcile_of,
    roster_from_wire,
    roster_to_wire,
    session_of,
)
from router_service.convert.slots import add_op, reservation_from_wire, slot_answers_of, slot_to_wire
from router_service.convert.table import described
from router_service.convert.table_parts import DeltaAssembly, TableAssembly, table_to_parts

__all__ = [
    "DeltaAssembly",
    "OptionsByKey",
    "ShownMetadata",
    "TableAssembly",
    "add_batch",
    "add_op",
    "capacity_from_wire",
    "described",
    "evicted_of",
    "failures_of",
    "first_roster_of",
    "found_of",
    "handler_state_of",
    "ids_of",
    "options_from_wire",
    "options_of_rpc",
    "partitions_of",
    "payloads_of",
    "reconcile_of",
    "reservation_from_wire",
    "result_too_large",
    "results_of",
    "results_problem",
    "roster_from_wire",
    "roster_to_wire",
    "session_of",
    "slot_answers_of",
    "slot_to_wire",
    "table_to_parts",
    "taken_of",
    "takes_to_wire",
    "tensors_of",
    "times_of",
    "too_large",
    "traces_of",
    "values_of",
    "with_relative_slo",
    "with_request",
]
