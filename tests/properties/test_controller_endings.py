"""When silent replicas are given up: leases, transitions and decisions together against a naive model on a fake clock.

The model knows when each replica was started, attached and heard last, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller_service.core.observed import launches, transitions
from controller_service.core.observed.leases import Leases
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.observed.transitions import Transition
from controller_service.core.reconciling.backends import START_TIMEOUT_S, DueEndings, find_endings
from tests.support.examples import examples

LEASE_S = 3.0
DEAD_AFTER_S = 10.0


@dataclass
class Model:
    """What is naively known of a replica."""

    started_at: float
    is_launched: bool
    heard_at: float | None = None
    is_ready: bool = False
    is_killed: bool = False

    def is_hung(self, now: float) -> bool:
        if not self.is_launched or self.is_killed:
            return False
        if self.heard_at is None:
            return now - self.started_at >= START_TIMEOUT_S
        if self.is_ready:
            return now - self.heard_at >= DEAD_AFTER_S
        return now - self.heard_at >= LEASE_S + START_TIMEOUT_S


class Silence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.observed = Observed()
        self.leases = Leases(lease_s=LEASE_S)
        self.models: dict[str, Model] = {}

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 7.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """The lease watch wakes at each deadline, exactly."""
        until = self.now + seconds
        while (deadline := self.leases.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            for replica_id in self.leases.expire(self.now):
                self.see(transitions.fell_silent(self.observed, replica_id, now=self.now))
        self.now = until

    @precondition(lambda self: len(self.models) < 4)
    @rule(is_found=st.booleans())
    def launch(self, is_found: bool) -> None:
        replica_id = f"r-{len(self.models)}"
        started = launches.launched(
            self.observed, replica_id, "v1", template="t", pid=1, now=self.now, was_found=is_found
        )
        self.see(started)
        self.models[replica_id] = Model(self.now, is_launched=True)

    @precondition(lambda self: len(self.models) < 4)
    @rule()
    def come_by_itself(self) -> None:
        replica_id = f"r-{len(self.models)}"
        self.models[replica_id] = Model(self.now, is_launched=False)
        self.say(replica_id, ReplicaState.STARTING)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), state=st.sampled_from([ReplicaState.STARTING, ReplicaState.READY, ReplicaState.READY]))
    def report(self, data: st.DataObject, state: ReplicaState) -> None:
        self.say(data.draw(st.sampled_from(sorted(self.models))), state)

    @rule()
    def look(self) -> None:
        """The controller kills what it should; the process is not reaped yet."""
        for replica_id, message in self.endings().hung.items():
            self.see(launches.given_up(self.observed, replica_id, message, now=self.now))
            self.models[replica_id].is_killed = True

    @precondition(lambda self: any(it.is_killed for it in self.models.values()))
    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        replica_id = data.draw(st.sampled_from(sorted(name for name, it in self.models.items() if it.is_killed)))
        self.see(launches.exited(self.observed, replica_id, "was killed by SIGKILL", failed=True, now=self.now))

    @invariant()
    def those_are_hung_that_were_silent_for_too_long(self) -> None:
        hung = {name for name, model in self.models.items() if model.is_hung(self.now)}
        assert self.endings().hung.keys() == hung

    @invariant()
    def it_looks_again_no_later_than_somebody_is_hung(self) -> None:
        again_after_s = self.endings().again_after_s
        suspects = [it for it in self.observed.replicas() if it.suspect_since is not None or not it.has_attached]
        if not any(self.models[it.replica_id].is_launched and not it.is_given_up for it in suspects):
            return
        hung = self.endings().hung
        if all(it.replica_id in hung or it.is_given_up or not it.launched for it in suspects):
            return
        assert again_after_s is not None
        assert again_after_s > 0.0

    @invariant()
    def nobody_is_gone_before_it_was_reaped(self) -> None:
        for replica in self.observed.replicas():
            assert replica.gone == replica.reaped
            assert not (replica.is_given_up and replica.takes_calls)

    def endings(self) -> DueEndings:
        return find_endings(self.observed.replicas(), self.now, launches=True, give_up_after_s=DEAD_AFTER_S - LEASE_S)

    def say(self, replica_id: str, state: ReplicaState) -> None:
        model, known = self.models[replica_id], self.observed.replica(replica_id)
        if known is not None and known.gone:
            return
        if model.heard_at is None:
            hello = Hello(replica_id=replica_id, incarnation="1", backend="v1")
            self.see(transitions.attached(self.observed, hello, now=self.now))
        report = ObservedReport(state=state, address="h:1", max_ongoing=1)
        self.see(transitions.reported(self.observed, replica_id, "1", report, now=self.now))
        self.leases.renew(replica_id, self.now)
        model.heard_at = self.now
        model.is_ready = model.is_ready or state is ReplicaState.READY

    def see(self, transition: Transition) -> None:
        self.observed = transition.observed


TestSilence = Silence.TestCase
TestSilence.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
