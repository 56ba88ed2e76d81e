"""Two controllers, the second without state of the first: no partition has two owners that could start its calls.

The world is naive: processes that are alive or not, what each of them refuses, what runs there, and every owner that
any table has ever named. Members attach in any order, are cut off, and die unseen. One router has the newest table of
the first controller, and reaches the second one soon; another one has an older table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.adoption import adopt, has_rivals
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ObservedRouter, ReplicaState
from controller_service.core.observed.transitions import NamesakeLives, Transition
from controller_service.core.partition_owners import NO_OWNER, Incarnation, ownership_of
from controller_service.core.reconciling.endpoints import TABLE_WITHIN_S, EndpointOutcomes
from controller_service.core.reconciling.routes import RouteBuilder, all_members, build_routes
from controller_service.core.roster import EarlierTable, IncarnationRoster, ListedIncarnation
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.examples import examples
from tests.support.group_facts import require_facts, require_same_routes

E = Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0}))
WATCHED = range(6)
"""Partitions that somebody owned; all are treated alike."""
NAMES = st.sampled_from("abc")


@dataclass
class Process:
    """What is true of a replica, whoever knows it."""

    owner: Incarnation
    has_served: bool
    lives: bool = True
    attached: bool = False
    heard: bool = False
    fence: int = 0
    """It starts nothing up to this epoch."""
    refuses: dict[int, int] = field(default_factory=dict)
    """By partition: it starts nothing up to this epoch."""
    runs: set[int] = field(default_factory=set)
    newest_epoch: int = 0

    def could_start(self, number: int, epoch: int) -> bool:
        return self.lives and epoch > max(self.fence, self.refuses.get(number, 0))


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.desired = Desired(epoch_floor=50).apply(
            ChangeSet(put_backends=(Backend(name="v1", num_replicas=1),), put_endpoints=(E,))
        )
        self.observed = Observed()
        self.processes: dict[Incarnation, Process] = {}
        self.named: dict[int, set[tuple[Incarnation, int]]] = {number: set() for number in WATCHED}
        """Owners and epochs that tables have named, by partition."""
        self.newest: EarlierTable | None = None
        self.older: EarlierTable | None = None
        self.born = 0
        self.is_brought = False
        self.listed, self.builder = set[Incarnation](), RouteBuilder()

    @initialize(
        owners=st.lists(NAMES, min_size=6, max_size=6),
        before=st.lists(NAMES, min_size=6, max_size=6),
        epochs=st.lists(st.sampled_from([4, 40, 50, 90]), min_size=6, max_size=6),
        running=st.sets(st.sampled_from(WATCHED)),
    )
    def first_controller(self, owners: list[str], before: list[str], epochs: list[int], running: set[int]) -> None:
        for name in "abc":
            self.start(name, has_served=True)
        at = [Incarnation(name, "1") for name in owners]
        was = [Incarnation(name, "1") for name in before]
        for number, epoch in enumerate(epochs):
            self.named[number].add((at[number], epoch))
            self.processes[at[number]].newest_epoch = max(self.processes[at[number]].newest_epoch, epoch - number % 2)
            if number in running:
                self.processes[at[number]].runs.add(number)
            if was[number] != at[number]:
                self.named[number].add((was[number], epoch - 1))
                self.processes[was[number]].refuses[number] = epoch - 1
        self.newest = self.table(9, at, epochs)
        self.older = self.table(
            8, was, [epoch - (one != other) for epoch, one, other in zip(epochs, at, was, strict=True)]
        )

    def table(self, revision: int, owners: list[Incarnation], epochs: list[int]) -> EarlierTable:
        rest = PARTITIONS - len(WATCHED)
        return EarlierTable(
            generation="f",
            roster=IncarnationRoster(
                revision=revision,
                members=tuple(
                    ListedIncarnation(owner=it, backend="v1", address="h:1", max_ongoing=1) for it in self.processes
                ),
            ),
            router_addresses=frozenset({"r0:1", "r1:1"}),
            ownership={"e": ownership_of([*owners, *[None] * rest], [*epochs, *[0] * rest])},
        )

    # -- what the world does -----------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_brought and self.now < TABLE_WITHIN_S)
    @rule()
    def bring_the_newest(self) -> None:
        self.bring("r1", self.newest)
        self.is_brought = True

    @rule()
    def bring_an_older_one(self) -> None:
        self.bring("r0", self.older)

    @precondition(lambda self: self.is_brought or self.now < TABLE_WITHIN_S - 1.0)
    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds if self.is_brought else min(seconds, TABLE_WITHIN_S - 0.5 - self.now)

    @precondition(lambda self: self.born < 8)
    @rule(name=st.sampled_from("abcd"))
    def start_another(self, name: str) -> None:
        """Somebody starts a process; under an id that was used before, only after that one has ended."""
        if not any(it.lives for it in self.processes.values() if it.owner.replica_id == name):
            self.attach(self.start(name, has_served=False))

    @rule(data=st.data())
    def attach_one(self, data: st.DataObject) -> None:
        living = sorted(owner for owner, it in self.processes.items() if it.lives and not it.attached)
        if living:
            self.attach(self.processes[data.draw(st.sampled_from(living))])

    @rule(data=st.data())
    def answer_the_fence(self, data: st.DataObject) -> None:
        waiting = [it for it in self.processes.values() if self.is_told_of_a_fence(it)]
        if waiting:
            self.answer(data.draw(st.sampled_from(waiting)))

    @rule()
    def hand_over(self) -> None:
        """All attached owners do what they are told, and say what is empty."""
        for owner, epochs in self.leaving().items():
            process = self.processes[owner]
            if process.attached and process.lives:
                for number, epoch in epochs.items():
                    process.refuses[number] = max(epoch, process.refuses.get(number, 0))
                emptied = {number: epoch for number, epoch in epochs.items() if number not in process.runs}
                self.see(routers.emptied(self.observed, owner, {"e": emptied}))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        busy = [it for it in self.processes.values() if it.runs]
        if busy:
            process = data.draw(st.sampled_from(busy))
            process.runs.remove(min(process.runs))

    @rule(data=st.data())
    def be_cut_off(self, data: st.DataObject) -> None:
        attached = [it for it in self.processes.values() if it.attached]
        if attached:
            process = data.draw(st.sampled_from(attached))
            process.attached = process.heard = False
            self.see(transitions.fell_silent(self.observed, process.owner.replica_id, now=self.now))

    @rule(data=st.data(), seen=st.booleans())
    def die(self, data: st.DataObject, seen: bool) -> None:
        process = data.draw(st.sampled_from([self.processes[owner] for owner in sorted(self.processes)]))
        process.lives = process.attached = False
        process.runs.clear()
        if process.heard:
            process.heard = False
            self.see(transitions.fell_silent(self.observed, process.owner.replica_id, now=self.now))
        if seen:
            self.see(transitions.ended(self.observed, process.owner, "its process has ended", now=self.now))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        known = sorted(self.observed.backend_of)
        if known:
            self.see(transitions.drain_requested(self.observed, data.draw(st.sampled_from(known)), "why"))

    @rule()
    def look(self) -> None:
        """As the loop does it: tables that were brought, owners, who is listed."""
        for router_id, brought in self.observed.earlier_tables.items():
            assert router_id in self.observed.routers
            if has_rivals(self.observed, brought) and self.now < 3.0:
                continue
            adoption = adopt(self.desired, self.observed, brought, generation="g", now=self.now, time_of_day=self.now)
            self.observed = adoption.observed
            self.desired = self.desired.apply(adoption.change)
            self.see(routers.adopted(self.observed, {router_id: brought}))
        floor = max([0, *(it.must_fence_through for it in self.observed.incarnations())])
        self.desired = self.desired.apply(ChangeSet(epoch_floor=floor))
        outcome = EndpointOutcomes(self.desired, self.observed, self.now, launches=False, started_at=0.0).of(E)
        if outcome.ownership is not None:
            self.desired = self.desired.apply(ChangeSet(put_ownership={"e": outcome.ownership}))
            owned, balancing = {"e": outcome.ownership}, {"e"} if outcome.balancing else set()
            self.see(routers.handovers_changed(self.observed, owned, balancing=balancing, now=self.now))
        members = all_members(build_routes(self.desired, self.observed))
        roster = self.desired.roster.listing(members, generation="g", revision=self.desired.revision + 1, now=self.now)
        self.desired = self.desired.apply(ChangeSet(put_roster=roster))
        self.listed |= roster.owners()
        ownership = self.desired.ownership.get("e")
        if ownership is not None:
            for number in WATCHED:
                index = ownership.partition_owners[number]
                if index != NO_OWNER:
                    self.named[number].add((ownership.owners[index], ownership.epochs[number]))

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def nobody_else_could_start_what_somebody_could(self) -> None:
        for number, named in self.named.items():
            able = {owner for owner, epoch in named if self.processes[owner].could_start(number, epoch)}
            running = {owner for owner, it in self.processes.items() if number in it.runs}
            assert len(able | running) <= 1, (number, able, running)

    @invariant()
    def who_leaves_the_roster_has_ended(self) -> None:
        gone = self.listed - self.desired.roster.owners()
        assert not any(self.processes[owner].lives for owner in gone)
        assert gone <= {it.owner for it in self.desired.roster.departed}

    @invariant()
    def what_is_kept_is_what_all_say(self) -> None:
        require_facts(self.observed, "e")
        require_same_routes(self.builder, self.desired, self.observed)

    def teardown(self) -> None:
        """Everybody who lives attaches, whoever died is seen: then every partition has a living owner, newly given."""
        if not self.is_brought:
            self.bring("r1", self.newest)
        self.now += 60.0
        for process in self.processes.values():
            process.runs.clear()
        self.attach(self.start("e", has_served=False))
        for _ in range(8):
            for process in self.processes.values():
                if not process.lives:
                    self.see(transitions.ended(self.observed, process.owner, "its process has ended", now=self.now))
            self.look()
            self.nobody_else_could_start_what_somebody_could()
            for process in [*self.processes.values()]:
                if process.lives and not process.attached:
                    self.attach(process)
                if self.is_told_of_a_fence(process):
                    self.answer(process)
            self.hand_over()
            self.now += 31.0
        ownership = self.desired.ownership["e"]
        assert NO_OWNER not in ownership.partition_owners
        assert not ownership.inherited
        for number in WATCHED:
            owner = ownership.owners[ownership.partition_owners[number]]
            assert self.processes[owner].could_start(number, ownership.epochs[number])

    # -- steps -------------------------------------------------------------------------------------------------------

    def start(self, name: str, *, has_served: bool) -> Process:
        self.born += 1
        process = Process(Incarnation(name, "1" if has_served else f"{self.born + 1}"), has_served)
        self.processes[process.owner] = process
        return process

    def bring(self, router_id: str, brought: EarlierTable | None) -> None:
        assert brought is not None
        router = ObservedRouter(router_id=router_id, address=f"{router_id}:1", started_at=self.now, generation="f")
        self.see(routers.attached(self.observed, router, brought))

    def attach(self, process: Process) -> None:
        known = self.observed.replica(process.owner.replica_id)
        is_heard = known is not None and any(
            it.heard for it in self.processes.values() if it.owner.replica_id == process.owner.replica_id
        )
        hello = Hello(
            replica_id=process.owner.replica_id,
            incarnation=process.owner.incarnation,
            backend="v1",
            has_served=process.has_served,
            generation="f" if process.has_served else "",
            newest_epoch=process.newest_epoch,
        )
        try:
            self.see(transitions.attached(self.observed, hello, now=self.now, is_heard=is_heard))
        except NamesakeLives:
            return
        process.attached = process.heard = True
        report = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
        owner = process.owner
        self.see(transitions.reported(self.observed, owner.replica_id, owner.incarnation, report, now=self.now))

    def is_told_of_a_fence(self, process: Process) -> bool:
        known = self.observed.replica(process.owner.replica_id)
        return (
            process.attached
            and process.lives
            and known is not None
            and known.incarnation == process.owner.incarnation
            and not known.is_fenced
            and self.desired.epoch_floor >= known.must_fence_through
        )

    def answer(self, process: Process) -> None:
        """It has given up everything, except that it goes on with what it runs."""
        process.fence = max(process.fence, self.desired.epoch_floor)
        busy = {"e": frozenset(process.runs)}
        self.see(routers.fenced(self.observed, process.owner, self.desired.epoch_floor, busy))

    def leaving(self) -> dict[Incarnation, dict[int, int]]:
        ownership = self.desired.ownership.get("e")
        return {} if ownership is None else ownership.leaving_by_owner()

    def see(self, transition: Transition) -> None:
        self.observed = transition.observed


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_an_owner_that_only_the_newest_table_names_is_waited_for() -> None:
    world = World()
    world.first_controller(["b"] * 6, ["a"] * 6, [40] * 6, set())
    world.bring_an_older_one()
    former = world.processes[Incarnation("a", "1")]
    world.attach(former)
    for _ in range(2):
        world.look()
        if world.is_told_of_a_fence(former):
            world.answer(former)
        world.nobody_else_could_start_what_somebody_could()
    world.bring_the_newest()
    world.look()
    world.nobody_else_could_start_what_somebody_could()
    assert world.desired.ownership["e"].owners[world.desired.ownership["e"].partition_owners[0]] == Incarnation(
        "b", "1"
    )
