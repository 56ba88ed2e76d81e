"""The life of a call at a replica, and that of a lane, as tables: every change of state goes through them.

Purpose: the tables are the whole truth about what can happen; docs/call-states.md shows them as diagrams.
Invariants: a run has one state: that of its calls from `lo` to `hi`; once none is left there, that of the others, which
executors and batchers have. So an event that happens to some of these calls changes the state with the last of them.
Calls that an executor returns, or that part from others, are a run of their own.
Owner: the scheduler; only `accounting` and `lanes` change states.
"""

from __future__ import annotations

from typing import Final

from slotmesh.calls.state_table import StateName, StateTable


class CallState(StateName):
    """Where the calls of a run are."""

    ARRIVED = "Arrived"
    """A frame had them; they are not accepted yet."""
    UPLOADING = "Uploading"
    """The payload is still arriving in chunks: a single call, which does not start."""
    WAITING = "Waiting"
    """In a queue: of unkeyed calls, of their lane, or of calls in slots."""
    PARKED = "Parked"
    """They would have started when their link was not fresh: with their link until it is, and in no queue."""
    GATHERED = "Gathered"
    """Unkeyed calls with permits, in a batcher."""
    EXECUTING = "Executing"
    """An executor has them, as a turn, in a batch, or one by one."""
    ENDED = "Ended"
    """They have their outcome."""


class CallEvent(StateName):
    """What happens to calls."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UPLOADED = "payload complete"
    PARKED = "link not fresh"
    UNPARKED = "link fresh"
    GATHERED = "permit, batch method"
    STARTED = "permit"
    GRANTED = "slot granted"
    FAILED = "cancelled, late or handed back"
    RETURNED = "returned unstarted"
    EXECUTED = "executed"


_S, _E = CallState, CallEvent
CALL_LIFE: Final = StateTable(
    "calls of a run",
    {
        (_S.ARRIVED, _E.ACCEPTED): _S.WAITING,
        (_S.UPLOADING, _E.ACCEPTED): _S.UPLOADING,
        (_S.ARRIVED, _E.REFUSED): _S.ENDED,
        (_S.UPLOADING, _E.REFUSED): _S.ENDED,
        (_S.UPLOADING, _E.UPLOADED): _S.WAITING,
        (_S.WAITING, _E.STARTED): _S.EXECUTING,
        (_S.WAITING, _E.GATHERED): _S.GATHERED,
        (_S.GATHERED, _E.STARTED): _S.EXECUTING,
        (_S.WAITING, _E.GRANTED): _S.ENDED,
        (_S.WAITING, _E.PARKED): _S.PARKED,
        (_S.PARKED, _E.UNPARKED): _S.WAITING,
        (_S.EXECUTING, _E.RETURNED): _S.WAITING,
        (_S.EXECUTING, _E.EXECUTED): _S.ENDED,
        **{(state, _E.FAILED): _S.ENDED for state in (_S.UPLOADING, _S.WAITING, _S.PARKED, _S.GATHERED)},
    },
)


class LaneState(StateName):
    """Where a lane is: in exactly one place."""

    READY = "Ready"
    """In the queue of lanes that wait for a permit."""
    BLOCKED = "Blocked"
    """With calls and in no queue: the first payload is still arriving, or a hook runs for the partition."""
    OFFERED = "Offered"
    """With a permit, in a batcher."""
    RUNNING = "Running"
    """With a permit, in a turn or a batch."""
    DROPPED = "Dropped"
    """Without calls: the next call of its key makes another lane."""


class LaneEvent(StateName):
    """What happens to a lane."""

    BLOCKED = "payload or hook missing"
    UNBLOCKED = "payload or hook complete"
    OFFERED = "permit, batch method"
    TURN_BEGUN = "permit"
    CUT = "in a batch"
    RETURNED = "turn or batch over, calls left"
    EMPTIED = "no call left"


_L, _H = LaneState, LaneEvent
LANE_LIFE: Final = StateTable(
    "a lane",
    {
        (_L.READY, _H.BLOCKED): _L.BLOCKED,
        (_L.BLOCKED, _H.UNBLOCKED): _L.READY,
        (_L.READY, _H.OFFERED): _L.OFFERED,
        (_L.READY, _H.TURN_BEGUN): _L.RUNNING,
        (_L.OFFERED, _H.CUT): _L.RUNNING,
        **{(state, _H.RETURNED): _L.READY for state in (_L.READY, _L.OFFERED, _L.RUNNING)},
        **{(state, _H.EMPTIED): _L.DROPPED for state in (_L.READY, _L.OFFERED, _L.RUNNING)},
    },
)
