"""Rollouts, run as the reconcile loop runs them, against a world of processes and a fake clock.

The model is naive: processes that start, get ready or die, and end some time after they were asked to. Whatever is
changed, and whenever: there are never too many processes, never too few ready ones, a pause holds what there is, deaths
in a row are those of one version, and once it is quiet all replicas run the newest settings, or those before where the
newest cannot start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import ChangeSet, Desired, restored
from controller_service.core.devices import DeviceLedger, rollout_room
from controller_service.core.observed import launches, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import TEMPLATES_KEPT, Observed, ReplicaState, Restarts
from controller_service.core.observed.transitions import QUICK_DEATH_S, Transition
from controller_service.core.reconciling.backends import (
    DrainReplica,
    ForgetReplica,
    MakeWay,
    StartReplicas,
    StartRoom,
    reconcile_backend,
)
from controller_service.core.reconciling.rollouts import RolloutPhase, show_progress
from slotmesh.spec.devices import HeldDevice
from slotmesh.spec.model import Backend
from tests.support.examples import examples

GOOD = ("a:One", "a:Two", "a:Three")
BAD = "a:Raises"
LACKS = "a:LacksItsSecret"
"""No process of it can be started."""


@dataclass
class RunningProcess:
    handler: str
    template: str
    devices: tuple[HeldDevice, ...] = ()
    ready_at: float | None = None
    is_asked: bool = False

    @property
    def is_ready(self) -> bool:
        return self.ready_at is not None


class Rollouts(RuleBasedStateMachine):
    @initialize(
        wanted=st.integers(1, 5),
        surge=st.sampled_from([None, 0, 1, 3]),
        unavailable=st.sampled_from([None, 1, 2]),
        spare=st.sampled_from([None, 0, 1, 2]),
    )
    def begin(self, wanted: int, surge: int | None, unavailable: int | None, spare: int | None) -> None:
        """`spare`: devices beyond one for each replica; None: they need none."""
        self.now = 1_000.0
        self.observed = Observed()
        self.processes: dict[str, RunningProcess] = {}
        self.deaths: Counter[str] = Counter()
        """Unasked, by template; since the newest long life, or since the template was taken back."""
        self.born = 0
        self.has_killed = False
        self.held: Counter[str] | None = None
        """What runs while the rollout is paused, by template."""
        self.wanted = wanted
        more = max(1, -(-wanted // 4)) if surge is None else surge
        more = more if spare is None else min(more, spare)
        self.most = wanted + more
        self.fewest = wanted - ((0 if more else 1) if unavailable is None else unavailable)
        self.pools = {} if spare is None else {"cuda": tuple(map(str, range(wanted + spare)))}
        backend = Backend(name="v1", handler=GOOD[0], num_replicas=wanted, max_surge=surge, max_unavailable=unavailable)
        backend = replace(backend, devices={} if spare is None else {"cuda": 1})
        self.desired = Desired().apply(ChangeSet(put_backends=(backend,)))
        self.settle()
        assert self.desired.rollouts["v1"].is_complete
        assert self.ready == wanted

    @property
    def backend(self) -> Backend:
        return self.desired.backends["v1"]

    @property
    def ledger(self) -> DeviceLedger:
        return DeviceLedger(pools=self.pools, holders={name: it.devices for name, it in self.processes.items()})

    @property
    def ready(self) -> int:
        return sum(it.is_ready and not it.is_asked for it in self.processes.values())

    # -- what happens ------------------------------------------------------------------------------------------------

    @rule(handler=st.sampled_from([*GOOD, BAD, LACKS]))
    def change_handler(self, handler: str) -> None:
        if self.held is None:
            self.put(replace(self.backend, handler=handler))
            self.reconcile()

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.reconcile()

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """A process gets on: ready, dead, or out."""
        self.advance(data.draw(st.sampled_from(sorted(self.processes))))
        self.reconcile()

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.has_killed = True
        self.end(data.draw(st.sampled_from(sorted(self.processes))), failed=True)
        self.reconcile()

    @rule()
    def pause(self) -> None:
        if self.held is None and "v1" in self.desired.rollouts:
            self.reconcile()
            record = self.desired.rollouts["v1"]
            self.change(ChangeSet(put_rollouts=(replace(record, is_paused=True),)))
            self.held = self.staying()

    @rule()
    def resume(self) -> None:
        self.held = None
        record = self.desired.rollouts["v1"]
        self.change(ChangeSet(put_rollouts=(replace(record, is_paused=False),)))
        self.reconcile()

    @rule()
    def restart_controller(self) -> None:
        """Another one takes over: it knows the store, and what runs; not for how long, nor what has died."""
        self.observed = Observed()
        self.deaths.clear()
        for replica_id, process in self.processes.items():
            process.ready_at = self.now if process.is_ready else None
            if process.is_asked:
                continue  # it was told to drain, and says so
            self.see(
                launches.launched(
                    self.observed, replica_id, "v1", template=process.template, pid=1, now=self.now, was_found=True
                )
            )
            self.report(replica_id, ReplicaState.READY if process.is_ready else ReplicaState.STARTING)
        for replica_id in [it for it, process in self.processes.items() if process.is_asked]:
            self.end(replica_id, failed=False)
        self.reconcile()

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def never_too_many_processes(self) -> None:
        assert len(self.processes) <= self.most

    @invariant()
    def never_too_few_ready_ones(self) -> None:
        assert self.has_killed or self.ready >= self.fewest

    @invariant()
    def no_device_has_two_holders(self) -> None:
        held = [device for process in self.processes.values() for device in process.devices]
        assert len(set(held)) == len(held) == (len(self.processes) if self.pools else 0)

    @invariant()
    def ranks_are_distinct_and_below_the_most_that_run(self) -> None:
        ranks = self.ranks()
        assert len(ranks) == len({*ranks})
        assert all(it < self.most for it in ranks)

    @invariant()
    def a_pause_holds_what_there_is(self) -> None:
        if self.held is not None and self.desired.rollouts["v1"].is_paused and not self.has_killed:
            there, present = self.staying(), template_of(self.backend)
            assert all(there[template] == self.held[template] for template in {*there, *self.held} - {present})
            assert there.total() <= max(self.held.total(), self.wanted), "none is started, but in place of another"

    @invariant()
    def deaths_in_a_row_are_those_of_one_version(self) -> None:
        known = self.observed.restarts.get("v1", {})
        assert len(known) <= TEMPLATES_KEPT
        for template, restarts in known.items():
            assert restarts.streak <= self.deaths[template]
            assert self.deaths[template] or restarts.not_before <= self.now, "a new version starts without delay"

    def teardown(self) -> None:
        if not hasattr(self, "desired"):
            return
        self.resume()
        asked_for = self.backend.handler
        self.settle()
        record = self.desired.rollouts["v1"]
        assert record.is_complete
        assert self.backend.handler in GOOD
        why = {BAD: "replicas have died", LACKS: "starts failed"}
        assert asked_for == self.backend.handler or why[asked_for] in record.why, "the record states why"
        assert {it.template for it in self.processes.values()} == {template_of(self.backend)}
        assert self.ready == len(self.processes) == self.wanted
        self.now += 31.0
        self.reconcile()
        replicas = [*self.observed.replicas("v1")]
        progress = show_progress(record, self.backend, self.wanted, replicas, self.now, time_of_day_s=self.now)
        assert (progress.phase, progress.available, progress.outdated) == (RolloutPhase.COMPLETE, self.wanted, 0)

    def ranks(self) -> list[int]:
        """Of the replicas that live, sorted."""
        live = (it for it in self.observed.replicas("v1") if it.has_attached and not it.gone)
        return sorted(it.rank for it in live if it.rank is not None)

    # -- the loop, and the processes -----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Processes do what they have to, for long enough."""
        for _ in range(60):
            self.reconcile()
            record = self.desired.rollouts.get("v1")
            is_quiet = self.ready == len(self.processes) == self.wanted
            if record is not None and record.is_complete and is_quiet:
                return
            for replica_id in [*self.processes]:
                self.advance(replica_id)
            self.reconcile()
            self.now += 31.0

    def reconcile(self) -> None:
        for _ in range(20):
            before = self.observed, self.desired
            outcome = reconcile_backend(
                *("v1", self.desired, self.observed, self.now),
                owners=(),
                launches=True,
                time_of_day_s=self.now,
                room=StartRoom(rollout_room(self.ledger, self.backend, self.observed.ending())),
            )
            step = outcome.rollout
            if step.record is not None:
                back = () if step.goes_back_to is None else (restored(self.backend, step.goes_back_to),)
                if back:
                    self.observed = self.observed.with_restarts("v1", template_of(self.backend), Restarts())
                    del self.deaths[template_of(self.backend)]
                self.change(ChangeSet(put_rollouts=(step.record,), put_backends=back))
            for action in () if step.goes_back_to is not None else outcome.actions:
                match action:
                    case StartReplicas(backend, count):
                        template = template_of(backend)
                        there = sum(it.template == template and not it.is_asked for it in self.processes.values())
                        for _ in range(count - there):
                            self.start(backend)
                    case DrainReplica():
                        before_it = self.ready
                        self.drain(action)
                        is_lost = self.ready < min(before_it, self.wanted)
                        assert self.backend.handler != LACKS or not is_lost, "it cannot take its place"
                    case MakeWay(backend, drains):
                        if self.can_start(backend):
                            for each in drains:
                                self.drain(each)
                    case ForgetReplica(replica_id):
                        self.observed = self.observed.without_replica(replica_id)
                    case _:
                        raise AssertionError(action)
            if all(one is other for one, other in zip(before, (self.observed, self.desired), strict=True)):
                return
        raise AssertionError("reconciling does not come to rest")

    def staying(self) -> Counter[str]:
        return Counter(it.template for it in self.processes.values() if not it.is_asked)

    def drain(self, action: DrainReplica) -> None:
        self.see(transitions.drain_requested(self.observed, action.replica_id, action.message))
        if action.replica_id in self.processes:
            self.processes[action.replica_id].is_asked = True

    def can_start(self, backend: Backend) -> bool:
        if backend.handler != LACKS:
            return True
        self.born += 1
        template = template_of(backend)
        self.deaths[template] += 1
        failed = launches.launch_failed(
            self.observed, f"v1-{self.born}", "v1", "it has no secret", now=self.now, template=template
        )
        self.see(failed)
        return False

    def start(self, backend: Backend) -> None:
        if not self.can_start(backend):
            return
        devices = self.ledger.choose(backend.devices)
        if devices is None:
            return  # the start is deferred
        self.born += 1
        replica_id, template = f"v1-{self.born}", template_of(backend)
        self.processes[replica_id] = RunningProcess(backend.handler, template, devices)
        self.see(launches.launched(self.observed, replica_id, "v1", template=template, pid=1, now=self.now))

    def advance(self, replica_id: str) -> None:
        process = self.processes[replica_id]
        if process.is_asked:
            self.end(replica_id, failed=False)
        elif process.handler == BAD:
            self.report(replica_id, ReplicaState.FAILED)
            self.end(replica_id, failed=True)
        else:
            process.ready_at = self.now if process.ready_at is None else process.ready_at
            self.report(replica_id, ReplicaState.READY)

    def report(self, replica_id: str, state: ReplicaState) -> None:
        replica = self.observed.replica(replica_id)
        if replica is None:
            return
        if not replica.incarnation:
            hello = Hello(replica_id=replica_id, incarnation="1" * 32, backend="v1")
            self.see(transitions.attached(self.observed, hello, now=self.now))
        report = ObservedReport(state=state, address="h:1", max_ongoing=1, error="ValueError: no")
        self.see(transitions.reported(self.observed, replica_id, "1" * 32, report, now=self.now))

    def end(self, replica_id: str, *, failed: bool) -> None:
        process = self.processes.pop(replica_id)
        if process.ready_at is not None and self.now - process.ready_at >= QUICK_DEATH_S:
            del self.deaths[process.template]
        elif not process.is_asked:
            self.deaths[process.template] += 1
        self.see(launches.exited(self.observed, replica_id, "exited with status 1", failed=failed, now=self.now))

    def put(self, backend: Backend) -> None:
        self.change(ChangeSet(put_backends=(backend,)))

    def see(self, transition: Transition) -> None:
        self.observed = transition.observed

    def change(self, change: ChangeSet) -> None:
        self.desired = self.desired.apply(change)


def test_a_rollout_without_a_spare_device_stops_one_before_it_starts_one() -> None:
    machine = Rollouts()
    machine.begin(wanted=2, surge=1, unavailable=None, spare=0)
    machine.change_handler(GOOD[1])
    assert [it.is_asked for it in machine.processes.values()] == [True, False]
    machine.teardown()


def test_none_makes_way_for_what_cannot_start() -> None:
    machine = Rollouts()
    machine.begin(wanted=2, surge=1, unavailable=None, spare=0)
    machine.change_handler(LACKS)
    assert machine.ready == 2
    machine.teardown()


def test_ranks_beyond_the_number_end_with_the_next_rollout() -> None:
    machine = Rollouts()
    machine.begin(wanted=3, surge=1, unavailable=None, spare=None)
    seen = [machine.ranks()]
    for handler in (GOOD[1], GOOD[2], GOOD[0], GOOD[1]):
        machine.change_handler(handler)
        machine.settle()
        seen.append(machine.ranks())
    assert seen == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 1, 3], [0, 1, 2]]


def test_ranks_stay_below_the_number_where_a_rollout_adds_no_replica() -> None:
    machine = Rollouts()
    machine.begin(wanted=3, surge=0, unavailable=1, spare=None)
    for handler in (GOOD[1], GOOD[2]):
        machine.change_handler(handler)
        machine.settle()
        assert machine.ranks() == [0, 1, 2]


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
