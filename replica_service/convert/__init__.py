"""Frames <-> domain values, once a frame or run, never once a call where calls share what they have.

Invariants: protobuf messages do not pass this edge inwards; equal options are converted once and then looked up; what
is wrong with a run fails that run's calls, what is wrong with the stream is a `BadRequest`-like error of the servicer.
"""

from replica_service.convert.reports import (
    capacity_to_wire,
    lanes_stopped_to_wire,
    reconciled_to_wire,
    service_times_to_wire,
    tensors_to_wire,
)
from replica_service.convert.runs import Arrived, RejectedRun, questions_of, runs_of
from replica_service.convert.slots import (
    DispatchOp,
    Granted,
    Issuer,
    RejectedDispatch,
    RejectedOp,
    ReleaseOp,
    RenewOp,
    ReserveOp,
    SlotAnswer,
    SlotReleased,
    add_answers,
    attached_to_wire,
    attachment_of,
    detached_to_wire,
    released_to_wire,
    reservation_run,
    slot_call_of,
    slot_call_options,
    slot_failure,
    slot_ops_of,
)

__all__ = [
    "Arrived",
    "DispatchOp",
    "Granted",
    "Issuer",
    "RejectedDispatch",
    "RejectedOp",
    "RejectedRun",
    "ReleaseOp",
    "RenewOp",
    "ReserveOp",
    "SlotAnswer",
    "SlotReleased",
    "add_answers",
    "attached_to_wire",
    "attachment_of",
    "capacity_to_wire",
    "detached_to_wire",
    "lanes_stopped_to_wire",
    "questions_of",
    "reconciled_to_wire",
    "released_to_wire",
    "reservation_run",
    "runs_of",
    "service_times_to_wire",
    "slot_call_of",
    "slot_call_options",
    "slot_failure",
    "slot_ops_of",
    "tensors_to_wire",
]
