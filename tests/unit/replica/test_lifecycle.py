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


def test_what_is_not_in_the_table_is_a_defect() -> None:
    with pytest.raises(IllegalTransition, match="constructed cannot happen to a replica that is DRAINING"):
        next_state(State.DRAINING, LifecycleEvent.CONSTRUCTED)


def test_states_share_their_numbers_with_the_wire() -> None:
    for state in State:
        assert mesh_pb2.ReplicaState.Name(state.value) == f"REPLICA_STATE_{state.name}"  # type: ignore[arg-type]
