"""Settings of the controller."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from slotmesh.config import Duration, ServiceSettings

SHORTEST_LEASE: Final = timedelta(seconds=2)
"""Two intervals of members' reports, which are a second apart."""


class ControllerSettings(ServiceSettings):
    """The controller of slotmesh: what should run, what does run, and how traffic is divided."""

    port: int = Field(7070, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_port: int = Field(
        9464, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    spec: Path | None = Field(None, description="A mesh.yaml that is applied at the start.")
    launcher: Literal["process", "external"] = Field(
        "process",
        description="Who starts replicas: this controller, as processes on this machine, or somebody else; "
        "then they attach by themselves.",
    )
    lease: Duration = Field(
        timedelta(seconds=3),
        ge=SHORTEST_LEASE,
        le=timedelta(hours=1),
        description="Silence after which a replica is suspect, and a router is no longer listed. Members report every "
        "second, and one late report must not make them drop off.",
    )
