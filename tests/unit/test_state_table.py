"""Tables of states: which state follows, what cannot happen, and the diagram."""

from __future__ import annotations

import pytest

from slotmesh.calls.state_table import StateName, StateTable


class Light(StateName):
    RED = "Red"
    GREEN = "Green"
    BROKEN = "Broken"


class Happening(StateName):
    SWITCHED = "switched"
    FAILED = "failed"
    KICKED = "kicked"


LIFE = StateTable(
    "a light",
    {
        (Light.RED, Happening.SWITCHED): Light.GREEN,
        (Light.GREEN, Happening.SWITCHED): Light.RED,
        (Light.GREEN, Happening.FAILED): Light.BROKEN,
        (Light.GREEN, Happening.KICKED): Light.BROKEN,
        (Light.BROKEN, Happening.KICKED): Light.BROKEN,
    },
)


def test_a_row_has_the_states_in_which_the_event_can_happen() -> None:
    assert LIFE.on(Happening.SWITCHED) == {Light.RED: Light.GREEN, Light.GREEN: Light.RED}
    assert LIFE.on(Happening.FAILED) == {Light.GREEN: Light.BROKEN}


def test_what_cannot_happen_is_described() -> None:
    assert LIFE.impossible(Light.RED, Happening.FAILED) == "'failed' cannot happen to a light in state 'Red'"


def test_a_table_does_not_change() -> None:
    with pytest.raises(TypeError):
        LIFE.steps[Light.RED, Happening.FAILED] = Light.BROKEN  # type: ignore[index]


def test_the_diagram_has_an_arrow_for_each_pair_of_states() -> None:
    assert LIFE.diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> Red",
        "    Red --> Green: switched",
        "    Green --> Red: switched",
        "    Green --> Broken: failed / kicked",
    ]
