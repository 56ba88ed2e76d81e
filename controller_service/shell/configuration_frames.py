"""The configurations of backends as frames, for all replicas of each.

Owner: `shell.replica_links`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from controller_service.convert.replicas import configuration_to_wire
from controller_service.core.lineage import HeldTable
from slotmesh.spec.model import Backend
from slotmesh.v1 import membership_service_pb2 as wire

MAX_FRAMES: Final = 1024
"""Configurations that are kept: one for each backend."""


class ToldConfiguration(NamedTuple):
    """What a replica's configuration follows from."""

    backend: Backend
    is_known: bool
    """There is a backend of that name."""
    router_addresses: tuple[str, ...]
    controller_addresses: tuple[str, ...]


class ConfigurationFrames:
    """The newest configuration of each backend, as replicas get it: made once for all of them."""

    def __init__(self, version: Callable[[], HeldTable]) -> None:
        """`version` is that of the store."""
        self._version = version
        self._frames: dict[str, tuple[ToldConfiguration, wire.AttachReplicaResponse]] = {}

    def of(self, told: ToldConfiguration) -> wire.AttachReplicaResponse:
        """The frame of a configuration, with the version of the store at which it was made."""
        known = self._frames.get(told.backend.name)
        if known is None or known[0] != told:
            frame = configuration_to_wire(
                told.backend,
                version=self._version(),
                is_known=told.is_known,
                router_addresses=told.router_addresses,
                controller_addresses=told.controller_addresses,
            )
            if len(self._frames) >= MAX_FRAMES:
                self._frames.clear()
            known = self._frames[told.backend.name] = told, frame
        return known[1]
