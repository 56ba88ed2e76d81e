"""A mesh in memory: real cores of routers and replicas, real frames between them, time and network in a test's hands.

Routers are their schedulers; replicas are their engines, with executors that a test drives by hand. Between each two of
them is a wire with frames under way in both directions, which can be delivered one by one, held up, or broken. Nothing
here waits or polls, and nothing runs by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from router_service.core.events import TableReceived
from router_service.core.rosters import KnownDeparture, ReplicaKey, RosterVersion, TableRoster
from router_service.core.routing_table import BackendRoute, EndpointRoute, PartitionOwners, ReplicaRoute, RoutingTable
from slotmesh.calls.key_hash import PARTITIONS, partition_of
from slotmesh.spec.model import Backend
from tests.support.fakes.clock import FakeClock
from tests.support.memory_nodes import ENDPOINT, MAX_ONGOING, ReplicaNode, RouterNode, Wire
from tests.support.shared_tables import sharing

BACKEND: Final = "b"
BEAT_S: Final = 1.0


class MemoryMesh:
    """Two routers, some replicas, and a controller that knows who owns what."""

    def __init__(self, replicas: int, keys: Iterable[str], loop: asyncio.AbstractEventLoop) -> None:
        self.time = FakeClock()
        self._loop = loop
        self._lives = 0
        self._revision = 0
        self._roster = TableRoster(RosterVersion("g", 0))
        self._listed: set[ReplicaKey] = set()
        self.replicas = {f"replica-{number}": self._new_replica(f"replica-{number}") for number in range(replicas)}
        names = sorted(self.replicas)
        self.owners = {partition_of(key): (self.replicas[names[at % len(names)]].key, 1) for at, key in enumerate(keys)}
        self.moving: dict[int, str] = {}
        """Partitions that their owner gives up, and the replicas they go to."""
        self.tables: list[RoutingTable] = []
        self._new_table()
        self.routers = [self._new_router(number) for number in range(2)]

    # -- the controller --------------------------------------------------------------------------------------------

    def push(self, router: RouterNode) -> None:
        """The router gets the newest table."""
        router.step(TableReceived(sharing(self.tables[-1], router.scheduler.table)))

    def move(self, partition: int, to: str) -> None:
        """The partition is to move to another replica, once its owner has nothing of it."""
        (owner, _), epoch = self.owners[partition]
        if to != owner and partition not in self.moving:
            self.moving[partition] = to
            self.replicas[owner].revoke(partition, epoch)
            self.complete_moves()

    def complete_moves(self) -> None:
        for partition, to in list(self.moving.items()):
            (owner, _), epoch = self.owners[partition]
            if self.replicas[owner].is_emptied(partition):
                del self.moving[partition]
                self.owners[partition] = (self.replicas[to].key, epoch + 1)
                self._new_table()

    # -- what breaks -----------------------------------------------------------------------------------------------

    def kill_router(self, number: int, seed: int) -> None:
        """It is gone with all it knew, and another one takes its place. Replicas notice when their wires end."""
        router = self.routers[number]
        for wire in list(router.wires.values()):
            wire.is_left = True
        self.routers[number] = self._new_router(number, seed)

    def kill_replica(self, name: str) -> None:
        """Its routers notice at once, the controller gives its partitions to others."""
        old = self.replicas[name]
        old.is_alive = False
        for wire in list(old.wires):
            if wire.router.wires.get(wire.core) is wire:
                wire.up.clear()
                wire.router.lose(wire)
        old.wires.clear()
        self.replicas[name] = self._new_replica(name)
        others = [each for each in sorted(self.replicas) if each != name]
        for partition, ((owner, _), epoch) in self.owners.items():
            if owner == name:
                self.moving.pop(partition, None)
                self.owners[partition] = (self.replicas[others[partition % len(others)]].key, epoch + 1)
            elif self.moving.get(partition) == name:
                continue  # it moves to the new incarnation
        self._new_table()

    def join(self) -> None:
        """One more replica, of which routers hear by and by."""
        name = f"replica-{len(self.replicas)}"
        self.replicas[name] = self._new_replica(name)
        self._new_table()

    def break_wire(self, wire: Wire) -> None:
        """Both sides notice; what was under way is lost."""
        wire.down.clear()
        wire.up.clear()
        if wire.router.wires.get(wire.core) is wire:
            wire.router.lose(wire)
        wire.is_left = True
        self.notice(wire)

    def notice(self, wire: Wire) -> None:
        """The replica gets to know that the router has ended the wire."""
        if wire.is_left and not wire.down and wire in wire.replica.wires and not wire.replica.is_stopped:
            wire.replica.close(wire)

    def connect(self, router: RouterNode, name: str) -> None:
        """The router opens a stream to the replica."""
        replica = self.replicas[name]
        core = router.replicas[replica.key]
        router.wires[core] = replica.connect(router, core)

    def unconnected(self) -> list[tuple[RouterNode, str]]:
        """Routers and the replicas that they could connect to."""
        return [
            (router, name)
            for router in self.routers
            for name, replica in self.replicas.items()
            if (core := router.replicas.get(replica.key)) is not None
            and core not in router.wires
            and not replica.is_stopped
            and not self._is_held(router, name)
        ]

    def is_behind(self, router: RouterNode) -> bool:
        """Whether there is a newer table than the one that the router has."""
        return router.scheduler.topology.table.revision < self.tables[-1].revision

    def pass_time(self, seconds: float) -> None:
        """Signs of life come and are answered where nothing is in the way."""
        left = seconds
        while left > 0:
            step = min(left, BEAT_S)
            left -= step
            self.time.advance(step)
            for router in self.routers:
                for wire in list(router.wires.values()):
                    if not wire.is_held and not wire.replica.is_stopped and wire.replica.is_alive:
                        wire.heard_at = self.time.now()
                        wire.replica.echoed(wire)
                router.tick()

    # -- to look at ------------------------------------------------------------------------------------------------

    def wires(self) -> Iterator[Wire]:
        """All, also those that only one side still has."""
        seen: dict[Wire, None] = {}
        for router in self.routers:
            seen.update(dict.fromkeys(router.wires.values()))
        for replica in self.replicas.values():
            seen.update(dict.fromkeys(replica.wires))
        return iter(list(seen))

    def downward(self) -> list[Wire]:
        """Those with a frame that the replica can take."""
        return [
            wire
            for wire in self.wires()
            if wire.down and not wire.is_held and not wire.replica.is_stopped and wire in wire.replica.wires
        ]

    def upward(self) -> list[Wire]:
        """Those with a frame that the router can take."""
        return [
            wire for wire in self.wires() if wire.up and not wire.is_held and wire.router.wires.get(wire.core) is wire
        ]

    def _is_held(self, router: RouterNode, name: str) -> bool:
        return any(wire.is_held and wire.router.name == router.name for wire in self.replicas[name].wires)

    def _new_replica(self, name: str) -> ReplicaNode:
        self._lives += 1
        return ReplicaNode((name, f"life-{self._lives}"), self.time, self._loop)

    def _new_router(self, number: int, seed: int = 0) -> RouterNode:
        router = RouterNode(f"router-{number}", self.time, seed)
        self.push(router)
        return router

    def _new_table(self) -> None:
        self._revision += 1
        owners: list[tuple[ReplicaKey | None, int]] = [(None, 0)] * PARTITIONS
        for partition, owner in self.owners.items():
            owners[partition] = owner
        of_all = PartitionOwners.of(owners)
        routes = [ReplicaRoute(key=each.key, address="", max_ongoing=MAX_ONGOING) for each in self.replicas.values()]
        self.tables.append(
            RoutingTable(
                generation="g",
                revision=self._revision,
                endpoints={ENDPOINT: EndpointRoute(name=ENDPOINT, weights={BACKEND: 1.0}, owners=of_all)},
                backends={BACKEND: BackendRoute(settings=Backend(name=BACKEND), replicas=routes)},
                roster=self._new_roster(),
            )
        )

    def _new_roster(self) -> TableRoster:
        listed = {each.key for each in self.replicas.values()}
        if listed != self._listed:
            version = RosterVersion("g", self._revision)
            departed = [KnownDeparture(key, version) for key in sorted(self._listed - listed)]
            self._roster = TableRoster(version, (*self._roster.departed, *departed))
            self._listed = listed
        return self._roster
