"""What the controller expects of a launcher. Each passes tests/contract/test_controller_launchers.py, the fake too.

Invariants:
  1. Each replica that `start` returned for ends in exactly one `Exit`, reported on the event loop, after `start`
     returned; and only once its process was reaped: nothing runs there any more.
  2. `stop` asks at once, kills after the grace, and may be repeated; asking a replica that is unknown is no error.
  3. After `close`, and after the controller's own end (SIGKILL included), no process is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """A replica that should start."""

    replica_id: str
    """Never used before."""
    backend: str
    handler: str
    """`MODULE:NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A replica's process was reaped."""

    replica_id: str
    how: str
    """For a person: `killed by SIGKILL`."""
    failed: bool
    """It did not end with status 0."""


class LaunchFailed(Exception):
    """No process could be started; the message says why."""


OnExit: TypeAlias = Callable[[Exit], None]


class Launcher(Protocol):
    """Starts and stops replica processes."""

    @property
    def launches(self) -> bool:
        """Whether it starts anything. If not, `start` is never called."""

    async def start(self, order: LaunchOrder) -> int:
        """Starts a process and returns its id. Raises LaunchFailed."""

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        """Asks a replica to drain and end, and kills it if it is still there `grace_s` seconds later."""

    async def close(self) -> None:
        """Stops what is left and waits until all of it was reaped: at most the longest grace that is under way."""
