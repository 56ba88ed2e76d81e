"""Worlds in which a session moves."""

from __future__ import annotations

from tests.unit.router.world import World


def pair() -> World:
    return World({"b": ["r1", "r2"]}, slots=100, owner=("r1", 1))


def asked(world: World) -> list[str]:
    return [name for name, _ in world.asked]
