"""A routing table after deltas is the table that is announced as a whole, whatever has happened in between.

The controller's part makes the tables and the deltas, as its reconcile loop and its board do; routers read their
streams when they like, so that some miss many revisions, and some ask for the whole table or attach anew.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ObservedRouter, ReplicaState
from controller_service.core.partition_owners import Incarnation, ownership_of
from controller_service.core.reconciling.routes import RosterListing, RouteBuilder
from controller_service.core.roster import CoveredTables, LeaderTerm
from controller_service.core.routing import AnnouncedTable
from controller_service.shell.members.tables import TableBoard, TableFeed
from router_service import convert
from router_service.core.routing_table import DeltaMismatch, RoutingTable, TableDelta, follow_delta
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.internal.v1 import membership_service_pb2 as wire
from slotmesh.spec.model import Backend, Endpoint, GrpcServices, TrafficPolicy
from slotmesh.spec.tenants import TenantLimits
from tests.support.examples import examples
from tests.support.state_changes import LIMITS, SERVICES
from tests.support.tables import (
    all_parts,
    delta_from_wire,
    earlier_table_from_wire,
    merged,
    reported,
    table_from_wire,
)

BACKENDS = ("v1", "v2", "v3")
ENDPOINTS = ("e", "f")
REPLICAS = ("a", "b", "c", "d")
LIVES = ("1", "2")
TERMS = (LeaderTerm("t1", 1), LeaderTerm("t2", 2))


class Reader:
    """A router, as far as it reads tables."""

    def __init__(self, board: TableBoard) -> None:
        self.feed = TableFeed(board)
        self.table = RoutingTable()
        self.deltas = 0
        self.parts: convert.TableAssembly | convert.DeltaAssembly | None = None
        """What has arrived of a table or a delta."""

    def read(self) -> None:
        """Takes what is there, to the last part of it."""
        while self.read_frame() or self.parts is not None:
            pass

    def read_frame(self) -> bool:
        """Takes one frame; returns whether a table or a delta is complete by it."""
        frame = self.feed.next_frame()
        if frame is None:
            return False
        before = self.table
        said = wire.AttachRouterResponse.FromString(frame.SerializeToString())
        self.take_part(said.table_part)
        for parts, earlier in ((self.table.endpoints, before.endpoints), (self.table.backends, before.backends)):
            for name, part in parts.items():
                assert part is earlier.get(name) or part != earlier.get(name), "what is the same stays the same object"
        return self.table is not before

    def take_part(self, part: wire.TablePart) -> None:
        is_delta = part.HasField("delta")
        if part.is_first:
            assert self.parts is None, "the last part of the one before has come"
            self.parts = (
                convert.DeltaAssembly(part.delta, self.table)
                if is_delta
                else convert.TableAssembly(part.table, self.table)
            )
        if isinstance(self.parts, convert.DeltaAssembly):
            self.parts.add(part.delta)
            if part.is_last:
                self.follow(self.parts.finish())
        else:
            assert self.parts is not None
            self.parts.add(part.table)
            if part.is_last:
                self.table = self.parts.finish()
        if part.is_last:
            self.parts = None

    def follow(self, delta: TableDelta) -> None:
        self.deltas += 1
        self.table = follow_delta(self.table, delta)


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.desired, self.observed = Desired(), Observed()
        self.routes, self.listing = RouteBuilder(), RosterListing()
        self.board = TableBoard(part_bytes=1)
        self.readers = [Reader(self.board) for _ in range(3)]
        self.tables: list[AnnouncedTable] = []
        self.announced: tuple[Desired, Observed] | None = None

    @initialize()
    def begin(self) -> None:
        self.change(_everything())
        for number, name in enumerate(REPLICAS):
            self.attach(name, "1", BACKENDS[number % 2])
        self.give("e", ("a", "1"), 0, PARTITIONS, 3)
        self.announce()
        for reader in self.readers:
            reader.read()

    # -- what changes ------------------------------------------------------------------------------------------------

    def change(self, change: ChangeSet) -> None:
        self.desired = self.desired.apply(change)

    @rule(name=st.sampled_from(BACKENDS), calls=st.sampled_from([1, 2, 1_000]))
    def set_up(self, name: str, calls: int) -> None:
        self.change(ChangeSet(put_backends=(Backend(name=name, max_queued_calls=calls, num_replicas=1),)))

    @rule(name=st.sampled_from(BACKENDS))
    def delete_backend(self, name: str) -> None:
        self.change(ChangeSet(delete_backends=(name,)))

    @rule(
        name=st.sampled_from(ENDPOINTS),
        weights=st.none() | st.dictionaries(st.sampled_from(BACKENDS), st.sampled_from([0.0, 0.5, 1.0]), min_size=1),
        shadows=st.dictionaries(st.sampled_from(BACKENDS), st.sampled_from([0.1, 1.0])),
    )
    def divide(self, name: str, weights: dict[str, float] | None, shadows: dict[str, float]) -> None:
        traffic = None if weights is None else TrafficPolicy(weights=weights, shadows=shadows)
        before = self.desired.endpoints.get(name, Endpoint(name=name))
        self.change(ChangeSet(put_endpoints=(replace(before, traffic=traffic),)))

    @rule(name=st.sampled_from(ENDPOINTS), services=st.sampled_from((None, *SERVICES)))
    def serve(self, name: str, services: GrpcServices | None) -> None:
        if (before := self.desired.endpoints.get(name)) is not None:
            self.change(ChangeSet(put_endpoints=(replace(before, grpc_services=services),)))

    @rule(name=st.sampled_from(ENDPOINTS), tenants=st.sampled_from((None, *LIMITS)))
    def limit_tenants(self, name: str, tenants: TenantLimits | None) -> None:
        if (before := self.desired.endpoints.get(name)) is not None:
            self.change(ChangeSet(put_endpoints=(replace(before, tenants=tenants),)))

    @rule(name=st.sampled_from(ENDPOINTS))
    def delete_endpoint(self, name: str) -> None:
        self.change(ChangeSet(delete_endpoints=(name,)))

    @rule(
        name=st.sampled_from(ENDPOINTS),
        owner=st.none() | st.tuples(st.sampled_from(REPLICAS), st.sampled_from(LIVES)),
        first=st.sampled_from([0, 1, 2_000]),
        count=st.sampled_from([1, 40, 4_096]),
        epoch=st.sampled_from([0, 3, 10**13]),
    )
    def give(self, name: str, owner: tuple[str, str] | None, first: int, count: int, epoch: int) -> None:
        if name not in self.desired.endpoints:
            return
        current = self.desired.ownership.get(name)
        owner_of: list[Incarnation | None] = [None] * PARTITIONS
        epochs = [0] * PARTITIONS
        if current is not None:
            owner_of = [None if index < 0 else current.owners[index] for index in current.partition_owners]
            epochs = [*current.epochs]
        for number in range(first, min(PARTITIONS, first + count)):
            owner_of[number] = None if owner is None else Incarnation(*owner)
            epochs[number] = max(epochs[number] + 1, epoch)
        self.change(ChangeSet(put_ownership={name: ownership_of(owner_of, epochs)}))

    @rule(name=st.sampled_from(ENDPOINTS))
    def tell_to_leave(self, name: str) -> None:
        if (current := self.desired.ownership.get(name)) is not None and current.partition_owners[5] >= 0:
            self.change(ChangeSet(put_ownership={name: replace(current, leaving=(5,))}))

    @rule(replica=st.sampled_from(REPLICAS), life=st.sampled_from(LIVES), backend=st.sampled_from(BACKENDS))
    def attach(self, replica: str, life: str, backend: str) -> None:
        known = self.observed.replica(replica)
        if known is not None and known.incarnation != life and not known.gone:
            self.end(replica)
        hello = Hello(replica_id=replica, incarnation=life, backend=backend, process=f"p-{life}")
        try:
            self.observed = transitions.attached(self.observed, hello, now=self.now).observed
        except transitions.AttachRefused:
            return
        self.report(replica, ReplicaState.READY, 1)

    @rule(
        replica=st.sampled_from(REPLICAS),
        state=st.sampled_from([ReplicaState.READY, ReplicaState.DRAINING]),
        calls=st.sampled_from([1, 8]),
    )
    def report(self, replica: str, state: ReplicaState, calls: int) -> None:
        if (known := self.observed.replica(replica)) is not None:
            said = ObservedReport(state=state, address=f"h:{1_000 + ord(replica)}", max_ongoing=calls)
            self.observed = transitions.reported(self.observed, replica, known.incarnation, said, now=self.now).observed

    @rule(replica=st.sampled_from(REPLICAS))
    def fall_silent(self, replica: str) -> None:
        self.observed = transitions.fell_silent(self.observed, replica, now=self.now).observed

    @rule(replica=st.sampled_from(REPLICAS))
    def end(self, replica: str) -> None:
        if (known := self.observed.replica(replica)) is not None:
            self.observed = transitions.ended(self.observed, known.owner, "it ended", now=self.now).observed

    @rule(replica=st.sampled_from(REPLICAS))
    def forget(self, replica: str) -> None:
        if (known := self.observed.replica(replica)) is not None and known.gone:
            self.observed = self.observed.without_replica(replica)

    @rule(name=st.sampled_from(["r", "s"]))
    def router_comes_or_leaves(self, name: str) -> None:
        if name in self.observed.routers:
            self.observed = routers.left(self.observed, name, "bye").observed
        else:
            router = ObservedRouter(router_id=name, address=f"{name}:1", started_at=self.now)
            self.observed = routers.attached(self.observed, router).observed

    @rule(generation=st.sampled_from(["old", "older"]), revision=st.integers(1, 9))
    def learn(self, generation: str, revision: int) -> None:
        covers = (*self.desired.roster.covers, CoveredTables(generation=generation, revision=revision))
        self.change(ChangeSet(put_roster=replace(self.desired.roster, covers=covers)))

    @rule(seconds=st.sampled_from([1.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- what is announced -------------------------------------------------------------------------------------------

    @invariant()
    def what_has_changed_is_announced(self) -> None:
        if (self.desired, self.observed) != self.announced:
            self.announce()

    def announce(self) -> None:
        routes = self.routes.build(self.desired, self.observed, launches=True)
        roster = self.listing.listing(
            self.desired.roster, routes, generation="g", revision=self.desired.revision + 1, now=self.now
        )
        self.change(ChangeSet(put_roster=roster))
        table = AnnouncedTable(
            generation="g",
            revision=self.desired.revision,
            routes=routes,
            roster=self.desired.roster,
            term_id=TERMS[-1].term_id,
            terms=TERMS,
        )
        self.tables.append(table)
        self.board.post(table)
        self.announced = self.desired, self.observed

    @rule(number=st.integers(0, 2), frames=st.integers(1, 5))
    def read_some_parts(self, number: int, frames: int) -> None:
        """More may be announced before the others are read."""
        for _ in range(frames):
            before, is_complete = self.readers[number].table, self.readers[number].read_frame()
            assert is_complete or self.readers[number].table is before, "nothing applies before the last part"

    @rule(number=st.integers(0, 2))
    def read(self, number: int) -> None:
        reader = self.readers[number]
        reader.read()
        if self.tables:
            self.require_newest(reader)

    @precondition(lambda self: self.tables)
    @rule(number=st.integers(0, 2))
    def ask(self, number: int) -> None:
        reader = self.readers[number]
        reader.feed.asked()
        while reader.parts is not None:
            reader.read_frame()
        before = reader.deltas
        reader.read()
        assert reader.deltas == before, "who asks gets the whole table"
        self.require_newest(reader)

    @rule(number=st.integers(0, 2))
    def attach_again(self, number: int) -> None:
        """Whatever of a table has arrived: it has changed nothing."""
        before = self.readers[number]
        self.readers[number] = Reader(self.board)
        self.readers[number].table = before.table

    @precondition(lambda self: len(self.tables) > 1)
    @rule(at=st.integers(0, 100), number=st.integers(0, 2))
    def deliver_one_that_does_not_apply(self, at: int, number: int) -> None:
        base, reader = self.tables[at % len(self.tables)], self.readers[number]
        delta = merged(all_parts(self.board.frames(base)))
        if isinstance(delta, wire.RoutingTableDelta) and reader.table.revision != base.revision:
            with pytest.raises(DeltaMismatch):
                follow_delta(reader.table, delta_from_wire(delta, reader.table))

    # -- what must hold ----------------------------------------------------------------------------------------------

    def require_newest(self, reader: Reader) -> None:
        whole = merged(all_parts(self.board.frames(None)))
        assert isinstance(whole, wire.RoutingTable)
        assert reader.table == table_from_wire(whole)
        tables = (reported(reader.table), whole)
        one, other = (earlier_table_from_wire(each, generation="next", now=0.0) for each in tables)
        assert one is not None
        assert other is not None
        assert set(one.roster.members) == set(other.roster.members)
        assert replace(one, roster=replace(one.roster, members=())) == replace(
            other, roster=replace(other.roster, members=())
        )

    @invariant()
    def deltas_are_kept_for_the_newest_table_only(self) -> None:
        newest = self.board.table
        for table in self.tables[-2:-1]:
            assert newest is not None
            assert merged(all_parts(self.board.frames(table))).revision == newest.revision


def _everything() -> ChangeSet:
    return ChangeSet(
        put_backends=tuple(Backend(name=name, num_replicas=1) for name in BACKENDS),
        put_endpoints=tuple(Endpoint(name=name) for name in ENDPOINTS),
    )


World.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestTableDeltas = World.TestCase
