"""The storm: any faults, close together."""

from __future__ import annotations

from simulation.mesh.draft import Draft
from simulation.mesh.faults import draw_faults
from simulation.mesh.scenario import CALM_S


def storm(draft: Draft) -> None:
    """Any faults, most of them close together: one alone is mostly survived."""
    chance, begins_s = draft.chance, draft.begins_s
    if chance.random() < 0.4:
        draft.press()
    world = ["controller", *draft.names()]
    for _ in range(chance.choice((1, 2, 2, 3, 3, 4, 5))):
        at_s = begins_s + chance.random() * chance.choice((0.2, 1.0, 2.0))
        draft.faults += draw_faults(chance, world, min(at_s, draft.seconds - CALM_S))
    if chance.random() < 0.4:
        draft.join(begins_s + chance.uniform(-0.3, 1.0))
