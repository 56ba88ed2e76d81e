"""Partitions at this replica: the owner epochs it still serves, and the partitions of which the handler was notified.

`ServedEpochs` keeps calls of one ordering key in order across replicas: a run that was sent at an older epoch is
refused, permanently, so that no later call overtakes it. A partition's floor never falls while it is remembered; floors
below a fence are dropped. At most `MAX_FLOORS` of the newest floors are remembered and whole endpoints are dropped, so
that memory is bounded when endpoints change.

`KeyHoldings`, for handlers with `on_keys_gained` or `on_keys_lost`, runs the hooks in step with the calls. A call of a
partition starts when `on_keys_gained` has ended for its owner epoch; `on_keys_lost` begins when the last call has
ended, and the partition counts as empty when the hook has ended. Each holding passes GAINING, HELD, LEAVING, LOSING in
this order, each once; a partition has one holding at a time; lanes that wait for a phase are blocked, and not in the
ready queue. For other handlers it costs one check per turn.

Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final

from replica_service.core.events import CallKeyHook, Commands, KeysGained, KeysLost
from replica_service.core.lanes import Lanes
from replica_service.core.runs import ReplicaLane, ReplicaRun

MAX_FLOORS: Final = 1_048_576
"""Floors that are remembered for all endpoints, about 100 bytes each."""


class ServedEpochs:
    """Partition -> lowest epoch that is still served."""

    __slots__ = ("_count", "_fence", "_floors", "_max_floors", "newest")

    def __init__(self, max_floors: int = MAX_FLOORS) -> None:
        """`max_floors`: floors that are remembered, not counting those of the endpoint with the newest one."""
        self._max_floors = max_floors
        self._floors: dict[str, dict[int, int]] = {}
        """By endpoint and partition; the endpoint with the newest floor is last."""
        self._count = 0
        """Total of all floors."""
        self._fence = 0
        """The floor of partitions without a floor of their own, which would be higher."""
        self.newest = 0
        """The newest owner epoch in calls and in orders of the controller."""

    def admit(self, endpoint: str, partition: int, epoch: int) -> bool:
        """Whether a run sent at this epoch is accepted. A higher epoch than before becomes the new floor."""
        floors = self._floors.get(endpoint)
        self.newest = max(self.newest, epoch)
        floor = self._fence if floors is None else floors.get(partition, self._fence)
        if epoch < floor:
            return False
        if epoch > floor:
            self._raise(endpoint, {partition: epoch})
        return True

    def serves(self, endpoint: str, partition: int, epoch: int) -> bool:
        """Whether a run that was accepted at this epoch may still start."""
        floors = self._floors.get(endpoint)
        return epoch >= (self._fence if floors is None else floors.get(partition, self._fence))

    def revoke(self, endpoint: str, epochs: Mapping[int, int]) -> None:
        """From now on refuses these epochs (by partition) and older ones."""
        self.newest = max(self.newest, *epochs.values()) if epochs else self.newest
        known = self._floors.get(endpoint, {})
        self._raise(
            endpoint,
            {partition: max(known.get(partition, self._fence), epoch + 1) for partition, epoch in epochs.items()},
        )

    def fence(self, epoch: int) -> None:
        """From now on refuses this epoch and older ones, of all partitions of all endpoints."""
        self.newest = max(self.newest, epoch)
        self._fence = max(self._fence, epoch + 1)
        above = {
            endpoint: {partition: floor for partition, floor in floors.items() if floor > self._fence}
            for endpoint, floors in self._floors.items()
        }
        self._floors = {endpoint: floors for endpoint, floors in above.items() if floors}
        self._count = sum(map(len, self._floors.values()))

    def _raise(self, endpoint: str, raised: Mapping[int, int]) -> None:
        """Sets the floors of these partitions of the endpoint."""
        floors = self._floors.pop(endpoint, {})
        self._count -= len(floors)
        floors.update(raised)
        self._floors[endpoint] = floors
        self._count += len(floors)
        while self._count > self._max_floors and len(self._floors) > 1:
            self._count -= len(self._floors.pop(next(iter(self._floors))))


class HoldingPhase(Enum):
    """What the handler was notified of about a partition."""

    GAINING = auto()
    """`on_keys_gained` runs, or is about to."""
    HELD = auto()
    """Calls start."""
    LEAVING = auto()
    """The partition was given up; calls that have started still run."""
    LOSING = auto()
    """`on_keys_lost` runs, or is about to."""


class KeyHolding:
    """A partition at one owner epoch."""

    __slots__ = ("endpoint", "epoch", "is_given_up", "partition", "phase", "running", "waiting")

    def __init__(self, endpoint: str, partition: int, epoch: int) -> None:
        self.endpoint = endpoint
        self.partition = partition
        self.epoch = epoch
        self.phase = HoldingPhase.GAINING
        self.is_given_up = False
        """While GAINING: the partition leaves as soon as it is held."""
        self.running = 0
        """Its lanes that have a permit."""
        self.waiting: dict[ReplicaLane, None] = {}
        """Lanes that are blocked until the phase changes."""


class KeyHoldings:
    """All holdings of the replica."""

    __slots__ = ("_held", "_lanes", "_running", "is_on")

    def __init__(self, lanes: Lanes) -> None:
        self.is_on = False
        """The handler has one of the hooks. To be set before the first call arrives."""
        self._lanes = lanes
        self._held: dict[tuple[str, int], KeyHolding] = {}
        self._running: dict[ReplicaLane, KeyHolding] = {}

    # -- calls -----------------------------------------------------------------------------------------------------

    def may_start(self, lane: ReplicaLane, run: ReplicaRun, commands: Commands) -> bool:
        """Whether calls of the run may start now. If not, the lane is unblocked when they may."""
        key = run.endpoint, run.partition
        holding = self._held.get(key)
        if holding is None:
            holding = self._held[key] = KeyHolding(run.endpoint, run.partition, run.owner_epoch)
            commands.append(CallKeyHook(holding.endpoint, holding.partition, holding.epoch, is_gain=True))
        elif holding.phase is HoldingPhase.HELD:
            if run.owner_epoch <= holding.epoch:
                return True
            self._leave(holding, commands)  # it returned at a newer epoch, without an order to give it up
        holding.waiting[lane] = None
        return False

    def started(self, lane: ReplicaLane, run: ReplicaRun) -> None:
        """Counts a lane that begins its turn with this run."""
        holding = self._running[lane] = self._held[run.endpoint, run.partition]
        holding.running += 1

    def returned(self, lane: ReplicaLane, commands: Commands) -> None:
        """Discounts a lane whose turn has ended, if it had one."""
        if (holding := self._running.pop(lane, None)) is not None:
            holding.running -= 1
            self._lose_if_over(holding, commands)

    # -- partitions that go away -----------------------------------------------------------------------------------

    def leave(self, endpoint: str, partitions: Collection[int], commands: Commands) -> None:
        """Gives these partitions up. Their calls that have not started are handed back elsewhere."""
        for partition in partitions:
            if (holding := self._held.get((endpoint, partition))) is not None:
                self._leave(holding, commands)

    def leave_all(self, through_epoch: float, commands: Commands) -> None:
        """Gives up all partitions that are held at this epoch or an older one."""
        for holding in list(self._held.values()):
            if holding.epoch <= through_epoch:
                self._leave(holding, commands)

    def _leave(self, holding: KeyHolding, commands: Commands) -> None:
        if holding.phase is HoldingPhase.GAINING:
            holding.is_given_up = True
        elif holding.phase is HoldingPhase.HELD:
            holding.phase = HoldingPhase.LEAVING
            self._lose_if_over(holding, commands)

    def _lose_if_over(self, holding: KeyHolding, commands: Commands) -> None:
        if holding.phase is HoldingPhase.LEAVING and not holding.running:
            holding.phase = HoldingPhase.LOSING
            commands.append(CallKeyHook(holding.endpoint, holding.partition, holding.epoch, is_gain=False))

    # -- the handler -----------------------------------------------------------------------------------------------

    def gained(self, event: KeysGained, commands: Commands) -> None:
        for partition in event.partitions:
            holding = self._held[event.endpoint, partition]
            holding.phase = HoldingPhase.HELD
            if holding.is_given_up:
                self._leave(holding, commands)
            else:
                self._unblock(holding)

    def lost(self, event: KeysLost) -> None:
        for partition in event.partitions:
            self._unblock(self._held.pop((event.endpoint, partition)))

    def _unblock(self, holding: KeyHolding) -> None:
        waiting, holding.waiting = holding.waiting, {}
        for lane in waiting:
            self._lanes.unblock(lane)

    # -- to be read ------------------------------------------------------------------------------------------------

    def holds(self, endpoint: str, partition: int) -> bool:
        """Whether the handler has been notified of the partition, and not yet of its loss."""
        return (endpoint, partition) in self._held

    @property
    def is_settled(self) -> bool:
        """Whether no hook runs or is about to."""
        return all(holding.phase is HoldingPhase.HELD for holding in self._held.values())

    def by_endpoint(self) -> dict[str, set[int]]:
        """Returns all partitions that the handler has been notified of."""
        found: dict[str, set[int]] = {}
        for endpoint, partition in self._held:
            found.setdefault(endpoint, set()).add(partition)
        return found
