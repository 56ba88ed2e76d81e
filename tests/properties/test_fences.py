"""Fences of replicas: no controller counts one as ended that runs, whatever clocks, networks and pauses do.

The model has one time, which both processes measure with clocks of their own speed. It moves each frame by hand, stops
either process for as long as it likes, and knows when the kernel ends the replica.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller_service.core.observed.leases import DRIFT, Leases, fenced
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import Observed, ReplicaState
from controller_service.core.observed.transitions import attached, ended, fell_silent, reported
from controller_service.core.partition_owners import Incarnation
from replica_service.core.lifecycle import Fence, FenceSettings
from replica_service.shell.stopping import KernelTimer
from tests.support.examples import examples

OWNER = Incarnation("r", "i")
LEASE_S = 3.0
LOOK_S = 0.25
SPEEDS = st.sampled_from([1.0 - DRIFT / 2.1, 1.0, 1.0 + DRIFT / 2.1])
"""Of a clock, against time. Between any two the drift is what the controller allows for, at most."""
SECONDS = st.one_of(st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.9, 3.0, 3.1, 30.0]), st.floats(0.0, 40.0))


class FencedMesh(RuleBasedStateMachine):
    @initialize(
        after_s=st.floats(2.0, 30.0),
        grace_s=st.floats(1.0, 10.0),
        speeds=st.tuples(SPEEDS, SPEEDS),
        offsets=st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6)),
    )
    def begin(self, after_s: float, grace_s: float, speeds: tuple[float, float], offsets: tuple[float, float]) -> None:
        self.time = 0.0
        self.speed, self.controller_speed = speeds
        self.offset, self.controller_offset = offsets
        # Frames on their way: reports with whether they say READY, and stamps that come back.
        self.reports = list[tuple[float, bool]]()
        self.stamps = list[float]()
        # The replica, and when the kernel ends it.
        self.fence = Fence(FenceSettings(after_s=after_s, grace_s=grace_s))
        self.kernel_at = float("inf")
        self.stands_still_in_set = 0.0
        self.timer = KernelTimer(self, self.arm)
        # The controller.
        hello = Hello(replica_id="r", incarnation="i", backend="b", fenced_after_s=self.fence.settings.bound_s)
        self.observed = attached(Observed(), hello, now=self.controller_now()).observed
        self.leases = Leases(lease_s=LEASE_S)
        self.leases.renew("r", self.controller_now())

    # -- clocks --------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """By the replica's clock."""
        return self.offset + self.time * self.speed

    def time_of_day(self) -> float:
        raise AssertionError("nothing here depends on the time of day")

    def controller_now(self) -> float:
        return self.controller_offset + self.time * self.controller_speed

    def arm(self, delay_s: float) -> None:
        stands_still, self.stands_still_in_set = self.stands_still_in_set, 0.0
        self.pass_time(stands_still)  # it is stopped between its look at the clock and this
        if not self.has_ended:
            self.kernel_at = self.time + delay_s / self.speed

    @property
    def has_ended(self) -> bool:
        return self.time >= self.kernel_at

    @property
    def counts_as_ended(self) -> bool:
        return self.observed.incarnation(OWNER).gone  # type: ignore[union-attr]

    # -- what happens --------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """The controller looks all the time, and finds what it has to find."""
        end = self.time + seconds
        while self.time < end:
            self.time = min(end, self.time + LOOK_S)
            self.controller_looks()
            self.what_counts_as_ended_has_ended()

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=SECONDS)
    def time_passes_while_the_controller_stands_still(self, seconds: float) -> None:
        self.time += seconds

    @precondition(lambda self: not self.has_ended)
    @rule(stands_still=st.one_of(st.just(0.0), SECONDS))
    def replica_is_ready(self, stands_still: float) -> None:
        if not self.fence.has_begun:
            self.stands_still_in_set = stands_still
            self.fence.begin(self.now())
            self.timer.set(self.fence.ends_at)

    @precondition(lambda self: not self.has_ended)
    @rule()
    def replica_reports(self) -> None:
        self.reports.append((self.now(), self.fence.has_begun))

    @precondition(lambda self: self.stamps and not self.has_ended)
    @rule(data=st.data(), stands_still=st.one_of(st.just(0.0), SECONDS))
    def replica_reads(self, data: st.DataObject, stands_still: float) -> None:
        self.read_stamp(data.draw(st.integers(0, len(self.stamps) - 1)), stands_still)

    def read_stamp(self, at: int, stands_still: float) -> None:
        stamp = self.stamps.pop(at)
        if self.fence.acknowledged(stamp, self.now()):
            self.stands_still_in_set = stands_still
            self.timer.set(self.fence.ends_at)

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def controller_reads(self, data: st.DataObject) -> None:
        self.read_report(data.draw(st.integers(0, len(self.reports) - 1)))

    def read_report(self, at: int) -> None:
        stamp, is_ready = self.reports.pop(at)
        report = ObservedReport(state=ReplicaState.READY if is_ready else ReplicaState.STARTING, address="h:1")
        self.observed = reported(self.observed, "r", "i", report, now=self.controller_now()).observed
        if not self.counts_as_ended:
            self.leases.renew("r", self.controller_now())
            self.stamps.append(stamp)

    @precondition(lambda self: not self.has_ended)
    @rule(there=SECONDS, back=SECONDS, stands_still=st.one_of(st.just(0.0), SECONDS))
    def one_report_is_acknowledged_and_nothing_after_it(self, there: float, back: float, stands_still: float) -> None:
        self.replica_is_ready(0.0)
        self.frames_are_lost()
        self.pass_time(0.5)
        self.reports.append((self.now(), True))
        self.pass_time(there)
        self.read_report(0)
        self.pass_time(back)
        if self.stamps and not self.has_ended:
            self.read_stamp(0, stands_still)
        self.frames_are_lost()

    @rule()
    def frames_are_lost(self) -> None:
        self.reports.clear()
        self.stamps.clear()

    @rule()
    def controller_looks(self) -> None:
        now = self.controller_now()
        for member in self.leases.expire(now):
            self.observed = fell_silent(self.observed, member, now=now, lease_s=LEASE_S).observed
        for owner in fenced(self.observed, now, since=float("-inf")):
            self.observed = ended(self.observed, owner, "it fences itself", now=now).observed

    @rule()
    def controller_waits_for_the_end(self) -> None:
        self.pass_time(LEASE_S + 1.2 * self.fence.settings.bound_s)

    # -- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def what_counts_as_ended_has_ended(self) -> None:
        assert not self.counts_as_ended or self.has_ended


LONG = st.floats(0.0, 40.0)


@settings(max_examples=examples(300), deadline=None)
@given(
    settings_s=st.tuples(st.floats(10.0, 30.0), st.floats(1.0, 10.0)),
    speeds=st.tuples(SPEEDS, SPEEDS),
    there=st.one_of(st.just(0.0), LONG),
    back=st.one_of(st.just(0.0), LONG),
    stands_still=st.one_of(st.just(0.0), LONG),
)
def test_nothing_follows_too_early_from_the_last_acknowledgement(
    settings_s: tuple[float, float], speeds: tuple[float, float], there: float, back: float, stands_still: float
) -> None:
    mesh = FencedMesh()
    mesh.begin(*settings_s, speeds=speeds, offsets=(0.0, 500.0))
    mesh.one_report_is_acknowledged_and_nothing_after_it(there, back, stands_still)
    mesh.controller_waits_for_the_end()


TestFences = FencedMesh.TestCase
TestFences.settings = settings(max_examples=examples(60), stateful_step_count=15, deadline=None)
