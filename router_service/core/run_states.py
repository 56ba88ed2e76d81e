"""The life of a run as a table, and what is known of an earlier sending of its calls as another one.

Purpose: where a run is, in one place: states x events, and the state that follows. A run moves as a whole, once a
step, never call by call; slices that replicas have are in `Sent`.
Invariants: a run's state changes by `Step.advance` only. An event that a state does not list is a defect of the router:
nothing changes, and the defect is reported (`commands.ReportRunDefect`), logged and counted. No event leaves ENDED or
LEFT: no call gets a second outcome.
Owner: the scheduler. The diagram in docs/call-states.md is written from these tables by `make format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from slotmesh.calls.state_table import StateName, StateTable


class RunState(StateName):
    """Where the calls of a run are that no replica has."""

    NEW = "Routed"
    """A place is being found for it: no step ends with a run in this state."""
    ARRIVING = "Arriving"
    """Its payload is arriving in chunks."""
    HELD = "Held"
    """A feature keeps it: behind an arriving payload, until replicas or its client have answered, or for a table."""
    QUEUED = "Queued"
    """Some of its calls wait in a queue, and are charged to an account."""
    SENT = "Sent"
    """None waits: those without an outcome are in outboxes, or at replicas."""
    OVERDUE = "Overdue"
    """Its deadline has passed, and its replicas were asked to stop its calls."""
    LEFT = "Left"
    """The connection of its session has closed: its outcomes are delivered to no caller here."""
    ENDED = "Ended"
    """Every call has its outcome, or has moved to another run."""


class RunEvent(StateName):
    """What happens to a run."""

    PAYLOAD_ANNOUNCED = "payload announced"
    PAYLOAD_ARRIVED = "payload arrived"
    HELD = "held"
    RELEASED = "released"
    QUEUED = "queued"
    UNQUEUED = "taken out of its queue"
    SENT = "last waiting call sent"
    NOT_FOUND = "look-up without an outcome"
    DEADLINE = "deadline passed"
    LEFT = "session left"
    ENDED = "last outcome"


_S, _E = RunState, RunEvent

RUN_LIFE: Final = StateTable(
    "a run",
    {
        (_S.NEW, _E.PAYLOAD_ANNOUNCED): _S.ARRIVING,
        (_S.NEW, _E.HELD): _S.HELD,
        (_S.NEW, _E.QUEUED): _S.QUEUED,
        (_S.NEW, _E.SENT): _S.SENT,
        (_S.ARRIVING, _E.PAYLOAD_ARRIVED): _S.HELD,
        (_S.HELD, _E.RELEASED): _S.NEW,
        (_S.QUEUED, _E.UNQUEUED): _S.NEW,
        (_S.QUEUED, _E.SENT): _S.SENT,
        (_S.SENT, _E.NOT_FOUND): _S.NEW,
        (_S.SENT, _E.DEADLINE): _S.OVERDUE,
        **{(state, _E.LEFT): _S.LEFT for state in (_S.NEW, _S.ARRIVING, _S.HELD, _S.SENT, _S.OVERDUE)},
        **{(state, _E.ENDED): _S.ENDED for state in (_S.NEW, _S.ARRIVING, _S.HELD, _S.SENT, _S.OVERDUE)},
        (_S.LEFT, _E.ENDED): _S.LEFT,
    },
)


class Earlier(StateName):
    """What is known of an earlier sending of a run's calls."""

    NONE = "First"
    """There was none, or no replica has received it."""
    UNKNOWN = "Unknown"
    """Replicas may have executed it: its session was connected elsewhere, or its replica was lost."""
    FOUND = "Found"
    """A replica has the calls: only their outcomes are asked for."""
    FETCHED = "Fetched"
    """The same, of outcomes that were here before and whose payloads were dropped."""


RECOVERED: Final = frozenset({Earlier.FOUND, Earlier.FETCHED})

ROWS: Final[Mapping[RunEvent, Mapping[RunState, RunState]]] = {event: RUN_LIFE.on(event) for event in RunEvent}
"""For each event, the states in which it can happen, each with the state that follows."""

NEW: Final = RunState.NEW
ARRIVING: Final = RunState.ARRIVING
QUEUED: Final = RunState.QUEUED
ALL_SENT: Final = RunEvent.SENT
LAST_OUTCOME: Final = RunEvent.ENDED
NO_EARLIER: Final = Earlier.NONE
"""Members that are read for each run: Python 3.11 takes 0.2 µs to read one from its class."""
