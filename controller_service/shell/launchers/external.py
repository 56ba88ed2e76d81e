"""Replicas are started outside the controller (by a person, compose, Kubernetes); they attach by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from controller_service.shell.launchers.protocol import Instance, LaunchFailed, LaunchOrder, Stranger


class ExternalLauncher:
    """Implements `Launcher` by starting nothing."""

    @property
    def launches(self) -> bool:
        return False

    @property
    def imports_snapshots(self) -> bool:
        return False

    async def start(self, order: LaunchOrder, count: int) -> None:
        raise LaunchFailed(f"{count} replicas of {order.backend} are started by somebody else: none is launched here")

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        """Nothing was started here; the order to drain goes over the replica's membership stream."""

    def kill(self, replica_id: str) -> None:
        """Nothing was started here."""

    def observe(self) -> Sequence[Instance]:
        return ()

    def strangers(self) -> Sequence[Stranger]:
        return ()

    def disown(self) -> None:
        """There are none."""

    async def leave(self) -> None:
        """Nothing was started here."""

    async def close(self) -> None:
        """Nothing was started here."""
