"""What the controller expects of a launcher. Each passes tests/contract/controller/test_launchers.py, the fake too.

Invariants:
  1. Every order is a level and may be repeated: `start` names how many should run, `stop` and `kill` an
     instance, `observe` what there is. After a restart of the controller `observe` has what earlier lives have started.
  2. Each instance that `observe` has ended in exactly one `Exit`, reported on the event loop, after the call that
     started it returned; and only once its process was reaped: nothing runs there any more. A launcher that follows
     another system may lose one instead: it is reported as such, and nothing is known of its end.
  3. `stop` asks immediately, kills after the grace, and may be repeated; naming a replica that is unknown is no error.
  4. After `close` no process is left; after `leave`, and after the controller's end without a word, instances go on
     serving for as long as they may without a controller, and then end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from controller_service.core.devices import DeviceLedger
from controller_service.core.roster import HeldTable
from slotmesh.spec.environment import ProcessSettings
from slotmesh.spec.model import Backend, PodSettings, SpecViolation

UNKNOWN_VERSION: Final = HeldTable(generation="", revision=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What replicas of a backend should be started with."""

    backend: str
    handler: str
    """`MODULE:NAME`."""
    template: str = ""
    """A digest of all that they are started with: what differs in it is another order."""
    fixed: str = ""
    """A digest of the part of it that no replica takes on without a restart."""
    version: HeldTable = field(default=UNKNOWN_VERSION, compare=False)
    """That of the state by which it was started: no part of what it is started with."""
    handler_version: str = field(default="", compare=False)
    """The backend's `version`, for people: a part of the template."""
    code: str = ""
    """What they run: the folder of a snapshot, or an installed distribution; empty: the files that are found."""
    pod: PodSettings | None = field(default=None, compare=False)
    """Their image and resources, where they are pods: a part of the template."""
    process: ProcessSettings = field(default_factory=ProcessSettings, compare=False)
    """What their processes are started with besides: a part of the template."""
    graceful_timeout_s: float = field(default=30.0, compare=False)
    """How long they may drain, seconds."""
    wanted_devices: Mapping[str, float] = field(default_factory=dict, compare=False)
    """What each of them wants, by pool: a part of the template."""
    devices: str = field(default="", compare=False)
    """What one of them holds, as `slotmesh.spec.devices.read_devices` reads it: the launcher chooses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A replica that a launcher has started, and that was not reaped."""

    replica_id: str
    """Never used before."""
    order: LaunchOrder
    pid: int
    """0 where there is no process of its own."""
    process: str = ""
    """The identity of its process, as in its hello; empty where that is not known."""
    was_found: bool = False
    """An earlier life of the controller has started it."""
    waits_for: str = ""
    """Why another system has not started its process yet, for a person; empty once it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A process that lives, and that this launcher has a record of, but has not started."""

    replica_id: str
    why: str
    """How it was found; for a person."""
    devices: str = ""
    """What it holds, as in `LaunchOrder.devices`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A replica's process was reaped."""

    replica_id: str = ""
    how: str
    """For a person: `killed by SIGKILL`."""
    failed: bool
    """It did not end with status 0, or how it ended is unknown."""
    was_killed: bool = False
    """By SIGKILL, from any sender."""
    last_output: str = ""
    """The last lines that it has written; bounded."""


class LaunchFailed(Exception):
    """No process could be started; the message has the reason."""


class LaunchDeferred(Exception):
    """It is unknown whether all were started, or it cannot be tried now: the call is to be repeated. No failure."""


class LaunchEvents:
    """What a launcher that follows another system reports besides exits. Each call is on the event loop.

    This one ignores everything.
    """

    def found(self) -> None:
        """`observe` has instances that no call of this controller has started."""

    def waits(self, replica_id: str, why: str) -> None:
        """A replica waits to be started by the other system. Empty `why`: it was started, now."""

    def lost(self, replica_id: str, why: str) -> None:
        """An instance is not observed any more, and may run on: its end has to be proven otherwise."""

    def ended(self, replica_id: str, how: str) -> None:
        """A replica that `observe` does not have has ended."""

    def pod_ended(self, uid: str, how: str) -> None:
        """All processes of a pod that was not started here have ended."""

    def resumed(self) -> None:
        """The other system answers again: what was deferred can be tried."""


_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
"""Without what people confuse."""

OnExit: TypeAlias = Callable[[Exit], None]


class Launcher:
    """Starts and stops replicas. This one starts none: a person, compose or Kubernetes does, and they attach."""

    launches = False
    """Whether it starts anything. If not, `start` is never called."""
    imports_snapshots = False
    """Whether what it starts imports `LaunchOrder.code`. If not, no snapshots are taken."""
    most_starting: int | None = None
    """The limit of a backend's replicas that were started and have not attached yet; None: there is no limit."""

    @property
    def watch_age_s(self) -> float | None:
        """Seconds since another system has confirmed that `observe` misses nothing; None: it follows none."""
        return None

    def violations(self, backend: Backend) -> Iterable[SpecViolation]:  # noqa: ARG002 - this one applies none
        """Settings of a backend with which nothing can be started here."""
        return ()

    async def start(self, order: LaunchOrder, count: int) -> None:
        """Makes sure that `count` instances of this order run which were not asked to end.

        Raises LaunchFailed, LaunchDeferred. Those that were started before are there, and `observe` has them.
        """
        raise LaunchFailed(f"{count} replicas of {order.backend} are started by another system: none is launched here")

    async def prepare(self, order: LaunchOrder) -> None:
        """Makes sure that all is there that a replica of this order is started with, as far as this can be known.

        Raises LaunchFailed, LaunchDeferred. Devices are not looked at: others hold them.
        """

    def stop(self, replica_id: str, *, grace_s: float) -> None:
        """Asks a replica to drain and end, and kills it if it is still there `grace_s` seconds later.

        One that was not started here gets the order to drain by its membership stream.
        """

    def kill(self, replica_id: str) -> None:
        """Ends a replica immediately, with all that it has started."""

    def observe(self) -> Sequence[Instance]:
        """The instances whose end was not reported yet, oldest first."""
        return ()

    def strangers(self) -> Sequence[Stranger]:
        """Processes that were found by records of another controller. They are neither adopted nor ended here."""
        return ()

    def disown(self) -> None:
        """Has no record of strangers any more."""

    def limit_shares(self, limits: Mapping[str, int]) -> None:
        """From now on, shares of devices use at most this number of devices, by pool."""

    def devices(self) -> DeviceLedger | None:
        """The devices of this machine, and what instances and strangers hold of them. None: it hands out none."""
        return None

    async def follow(self, events: LaunchEvents) -> None:  # noqa: ARG002 - this one has none
        """Follows another system, until cancelled. Nothing is reported of it before."""
        await asyncio.get_running_loop().create_future()

    async def leave(self) -> None:
        """Ends without the instances: they go on, and the next life of this controller finds them."""

    async def close(self) -> None:
        """Stops what is left and waits until all of it was reaped: at most the longest grace that is under way."""


def mint_replica_id(backend: str) -> str:
    """A new replica id: `BACKEND-` and 6 random characters, never a number that is used again."""
    return f"{backend}-{''.join(secrets.choice(_ID_ALPHABET) for _ in range(6))}"
