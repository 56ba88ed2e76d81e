"""The table of a replica's life."""

from __future__ import annotations

import pytest

from replica_service.core.lifecycle import TRANSITIONS, IllegalTransition, LifecycleEvent, State, next_state
from slotmesh.v1 import mesh_pb2


def test_a_life_without_trouble() -> None:
    state = State.STARTING
    for event in (
        LifecycleEvent.CONSTRUCTED,
        LifecycleEvent.STOP_ASKED,
        LifecycleEvent.STOP_ASKED,
        LifecycleEvent.EMPTIED,
    ):
        state = next_state(state, event)
    assert state is State.STOPPED


def test_nothing_goes_back() -> None:
    for state, row in TRANSITIONS.items():
        for target in row.values():
            assert target.value >= state.value


_C, _F, _S, _E = LifecycleEvent
LIFE = {
    State.STARTING: {_C: State.READY, _F: State.FAILED, _S: State.STOPPED},
    State.READY: {_S: State.DRAINING},
    State.DRAINING: {_S: State.DRAINING, _E: State.STOPPED},
    State.STOPPED: {_S: State.STOPPED},
    State.FAILED: {_S: State.FAILED},
}
"""Constructed, construction failed, stop asked, emptied. Written by hand: what operators see of a replica."""


@pytest.mark.parametrize("event", LifecycleEvent)
@pytest.mark.parametrize("state", State)
def test_each_event_leads_where_it_should(state: State, event: LifecycleEvent) -> None:
    if (expected := LIFE[state].get(event)) is not None:
        assert next_state(state, event) is expected
    else:
        with pytest.raises(IllegalTransition):
            next_state(state, event)


def test_what_is_not_in_the_table_is_a_defect() -> None:
    with pytest.raises(IllegalTransition, match="constructed cannot happen to a replica that is DRAINING"):
        next_state(State.DRAINING, LifecycleEvent.CONSTRUCTED)


def test_states_share_their_numbers_with_the_wire() -> None:
    for state in State:
        assert mesh_pb2.ReplicaState.Name(state.value) == f"REPLICA_STATE_{state.name}"  # type: ignore[arg-type]
