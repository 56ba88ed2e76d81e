"""Replicas are started outside the controller (by a person, compose, Kubernetes); they attach by themselves."""

from __future__ import annotations

from controller_service.shell.launchers.protocol import LaunchFailed, LaunchOrder


class ExternalLauncher:
    """Implements `Launcher` by starting nothing."""

    @property
    def launches(self) -> bool:
        return False

    async def start(self, order: LaunchOrder) -> int:
        raise LaunchFailed(f"replicas of {order.backend} are started by somebody else: this controller launches none")

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        """Nothing was started here; the order to drain goes over the replica's membership stream."""

    async def close(self) -> None:
        """Nothing was started here."""
