"""The reconcile functions, run as the loop runs them, against a world that does whatever it likes.

The world is naive: processes that live or not. Whatever happens, once it is quiet for long enough, what is is what
should be.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired, restored
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState, wanted_replicas
from controller_service.core.observed.transitions import Transition
from controller_service.core.partition_owners import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.reconciling.backends import (
    DrainReplica,
    ForgetReplica,
    KillReplica,
    MakeWay,
    StartReplicas,
    reconcile_backend,
)
from controller_service.core.reconciling.endpoints import EndpointOutcomes, find_concerns
from controller_service.core.reconciling.rollouts import RolloutStep
from controller_service.core.reconciling.routes import RosterListing, RouteBuilder, all_members, build_routes
from controller_service.core.roster import NO_ROSTER
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.examples import examples

NAMES = st.sampled_from(["v1", "v2", "v3"])
ENDPOINTS = ("e", "f")
WEIGHTS = st.sampled_from([(0.25, 0.25, 0.5), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)])
"""Of each of the three backends."""


def weighed(name: str, weights: tuple[float, ...]) -> Endpoint:
    return Endpoint(name=name, traffic=TrafficPolicy(weights=dict(zip(("v1", "v2", "v3"), weights, strict=True))))


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.desired = Desired(epoch_floor=10).apply(
            ChangeSet(
                put_backends=(
                    Backend(name="v1", handler="a:B"),
                    Backend(name="v2", handler="a:C", num_replicas=2),
                    Backend(name="v3", handler="a:B", num_replicas=1),
                ),
                put_endpoints=(weighed("e", (0.5, 0.5, 0.0)), weighed("f", (0.0, 0.5, 0.5))),
            )
        )
        self.observed = Observed()
        self.processes: dict[str, str] = {}
        """What really runs: incarnation by replica id."""
        self.instances: dict[str, tuple[str, str]] = {}
        """What the launcher has, and was not asked to end: backend and template by replica id."""
        self.ever_owned: dict[tuple[str, int, int], Incarnation] = {}
        self.born = 0
        self.builder, self.routes = RouteBuilder(), build_routes(Desired(), Observed())
        self.listing, self.roster = RosterListing(), NO_ROSTER

    # -- what the world does -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=NAMES, wanted=st.integers(0, 3))
    def scale(self, name: str, wanted: int) -> None:
        handler = self.desired.backends[name].handler
        self.change(ChangeSet(put_backends=(Backend(name=name, handler=handler, num_replicas=wanted),)))

    @rule(name=NAMES, handler=st.sampled_from(["a:B", "a:C"]))
    def update(self, name: str, handler: str) -> None:
        wanted = self.desired.backends[name].num_replicas
        self.change(ChangeSet(put_backends=(Backend(name=name, handler=handler, num_replicas=wanted),)))

    @rule(name=st.sampled_from(ENDPOINTS), weights=WEIGHTS)
    def weigh(self, name: str, weights: tuple[float, ...]) -> None:
        self.change(ChangeSet(put_endpoints=(weighed(name, weights),)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), state=st.sampled_from(["STARTING", "READY", "READY", "DRAINING", "STOPPED", "FAILED"]))
    def report(self, data: st.DataObject, state: str) -> None:
        replica_id = data.draw(st.sampled_from(sorted(self.processes)))
        self.report_as(replica_id, ReplicaState[state])

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.processes))), failed=True)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        replica_id = data.draw(st.sampled_from(sorted(self.processes)))
        self.see(transitions.fell_silent(self.observed, replica_id, now=self.now))

    @rule()
    def look(self) -> None:
        self.reconcile()

    # -- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def a_partition_has_one_owner_at_each_epoch(self) -> None:
        for name, ownership in self.desired.ownership.items():
            for number in (0, 1, 2_047, 4_095):  # all are treated alike
                index = ownership.partition_owners[number]
                if index != NO_OWNER:
                    owner = ownership.owners[index]
                    assert self.ever_owned.setdefault((name, number, ownership.epochs[number]), owner) == owner

    @invariant()
    def nobody_who_is_gone_is_routed_to(self) -> None:
        listed = {
            it.owner.replica_id
            for backend in build_routes(self.desired, self.observed).backends
            for it in backend.replicas
        }
        assert all(not it.gone for it in self.observed.replicas() if it.replica_id in listed)

    @invariant()
    def routes_that_are_built_on_those_before_are_the_same(self) -> None:
        before = self.routes
        self.routes = self.builder.build(self.desired, self.observed, launches=True)
        assert self.routes == build_routes(self.desired, self.observed, launches=True)
        for part, earlier in ((self.routes.backends, before.backends), (self.routes.endpoints, before.endpoints)):
            assert all(each is other for each in part for other in earlier if each == other)
        revision = self.roster.revision + 1
        expected = self.roster.listing(all_members(self.routes), generation="g", revision=revision, now=self.now)
        listed = self.listing.listing(self.roster, self.routes, generation="g", revision=revision, now=self.now)
        assert listed == expected
        assert (listed is self.roster) == (expected is self.roster)
        self.roster = listed

    def teardown(self) -> None:
        """It gets quiet: every process that starts gets ready, none dies, and what should be comes about."""
        for _ in range(12):
            self.now += 31.0
            self.reconcile()
            for replica_id in [*self.processes]:
                replica = self.observed.replica(replica_id)
                assert replica is not None
                if replica.is_drain_requested or replica.ended_at is not None:
                    self.end(replica_id, failed=False)
                elif replica.state is ReplicaState.DRAINING:
                    self.report_as(replica_id, ReplicaState.STOPPED)
                    self.end(replica_id, failed=False)
                else:
                    self.report_as(replica_id, ReplicaState.READY)
        for name, backend in self.desired.backends.items():
            alive = [it for it in self.observed.replicas(name) if not it.gone]
            assert len(alive) == wanted_replicas(backend, self.observed)
            assert all(it.takes_calls and it.template == template_of(backend) for it in alive)
            if alive:
                assert all(not it.gone for it in self.observed.replicas(name))  # what ended is forgotten
        for name, endpoint in self.desired.endpoints.items():
            assert endpoint.traffic is not None
            weights, ownership = endpoint.traffic.weights, self.desired.ownership.get(name)
            if any(weights[it.backend] for it in self.observed.replicas() if it.takes_calls):
                assert ownership is not None
                assert NO_OWNER not in ownership.partition_owners
                assert not any(self.observed.is_dead(owner) for owner in ownership.owners)

    # -- the loop, without its waiting ---------------------------------------------------------------------------

    def reconcile(self) -> None:
        for _ in range(50):
            before = self.observed, self.desired.backends, self.desired.endpoints, self.desired.ownership
            for name in {*self.desired.backends, *self.observed.by_backend}:
                owners = find_concerns(self.desired, self.observed).owner_ids
                outcome = reconcile_backend(
                    name, self.desired, self.observed, self.now, owners=owners, launches=True, time_of_day_s=self.now
                )
                self.remember(name, outcome.rollout)
                for action in outcome.actions:
                    match action:
                        case StartReplicas(backend, count):
                            order = (backend.name, template_of(backend))
                            kept = [it for it in self.instances.values() if it == order]
                            for _ in range(count - len(kept)):
                                self.start(backend)
                        case DrainReplica():
                            self.drain(action)
                        case MakeWay(_, drains):
                            for each in drains:
                                self.drain(each)
                        case KillReplica(replica_id, message):
                            self.see(launches.given_up(self.observed, replica_id, message, now=self.now))
                            self.instances.pop(replica_id, None)
                        case ForgetReplica(replica_id):
                            assert replica_id not in self.processes or self.observed.replica(replica_id).gone  # type: ignore[union-attr]
                            self.observed = self.observed.without_replica(replica_id)
            assigned: dict[str, PartitionOwnership] = {}
            for name, endpoint in self.desired.endpoints.items():
                owned = EndpointOutcomes(self.desired, self.observed, self.now, launches=True).of(endpoint).ownership
                if owned is not None:
                    assigned[name] = owned
            if assigned:
                self.change(ChangeSet(put_ownership=assigned))
            after = self.observed, self.desired.backends, self.desired.endpoints, self.desired.ownership
            if all(one is other for one, other in zip(before, after, strict=True)):
                return
        raise AssertionError("reconciling does not come to rest")

    def drain(self, action: DrainReplica) -> None:
        self.see(transitions.drain_requested(self.observed, action.replica_id, action.message))
        self.instances.pop(action.replica_id, None)

    def remember(self, name: str, step: RolloutStep) -> None:
        if step.record is not None:
            good = step.goes_back_to
            back = () if good is None else (restored(self.desired.backends[name], good),)
            self.change(ChangeSet(put_rollouts=(step.record,), put_backends=back))

    def start(self, backend: Backend) -> None:
        self.born += 1
        replica_id = f"{backend.name}-{self.born}"
        self.processes[replica_id] = f"{self.born:032x}"
        self.instances[replica_id] = (backend.name, template_of(backend))
        self.see(
            launches.launched(
                self.observed, replica_id, backend.name, template=template_of(backend), pid=self.born, now=self.now
            )
        )

    def report_as(self, replica_id: str, state: ReplicaState) -> None:
        incarnation = self.processes[replica_id]
        replica = self.observed.replica(replica_id)
        if replica is not None and not replica.incarnation:
            hello = Hello(replica_id=replica_id, incarnation=incarnation, backend=replica.backend)
            self.see(transitions.attached(self.observed, hello, now=self.now))
        report = ObservedReport(state=state, address="h:1", max_ongoing=1)
        self.see(transitions.reported(self.observed, replica_id, incarnation, report, now=self.now))

    def end(self, replica_id: str, *, failed: bool) -> None:
        del self.processes[replica_id]
        self.instances.pop(replica_id, None)
        self.see(launches.exited(self.observed, replica_id, "ended", failed=failed, now=self.now))

    def see(self, transition: Transition) -> None:
        self.observed = transition.observed

    def change(self, change: ChangeSet) -> None:
        self.desired = self.desired.apply(change)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
