"""The replica's scheduler with slots among its calls, under arbitrary interleavings.

On top of the histories of `test_replica_scheduler.py`: reservations, and what callers do with slots over any link, with
tokens that are good, late, used, or made up. The model of slots is naive: a list, looked through each time.
"""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.events import RenewalReceived, ReportRenewal, RunsReceived
from slotmesh.calls.slot_tokens import MAX_LEASE_S
from slotmesh.errors import Failure
from tests.properties.replica_slots_model import ALWAYS, ReplicaSlotsModel
from tests.properties.test_replica_scheduler import SchedulerMachine
from tests.support.examples import examples

LEASES_S = (0.25, 1.0, 2.0, 10.0)
TIMES_LEFT_S = st.sampled_from((inf, inf, 0.0, 0.3))


class SlotsMachine(SchedulerMachine):
    model: ReplicaSlotsModel
    model_class = ReplicaSlotsModel

    @rule(router=st.integers(0, 1), lease_s=st.sampled_from(LEASES_S), time_left_s=TIMES_LEFT_S)
    def reserve(self, router: int, lease_s: float, time_left_s: float) -> None:
        run = self.model.single(self.model.routers[router], ReplicaCallOptions(), "e", time_left_s)
        run.lease_s = lease_s
        before, room = self.model.core.in_use + self.model.core.waiting, self.model.room
        self.model.carry_out(self.model.core.step(RunsReceived([run]), self.model.now))
        assert self.model.core.in_use + self.model.core.waiting <= max(before, room)

    @precondition(lambda self: self.model.tokens)
    @rule(
        router=st.integers(0, 1),
        data=st.data(),
        method=st.sampled_from(("plain", "plain", "batch", "none")),
        endpoint=st.sampled_from(("", "", "e", "other")),
        time_left_s=TIMES_LEFT_S,
    )
    def dispatch(self, router: int, data: st.DataObject, method: str, endpoint: str, time_left_s: float) -> None:
        self.model.send(self.model.draw(data), self.model.routers[router], method, endpoint, time_left_s)

    @precondition(lambda self: self.model.tokens)
    @rule(data=st.data(), lease_s=st.sampled_from((*LEASES_S, 1e6)))
    def renew(self, data: st.DataObject, lease_s: float) -> None:
        token = self.model.draw(data)
        self.model.leases_end()
        verdict = self.model.verdict_on(token)
        link = self.model.routers[0].link
        commands = self.model.core.step(RenewalReceived(link, 0, token.slot.secret, lease_s), self.model.now)
        (renewed,) = [each.answer for each in commands if isinstance(each, ReportRenewal)]
        if verdict is None:
            assert renewed is token.slot
            token.expires_at = min(self.model.now + lease_s, token.slot.granted_at + MAX_LEASE_S)
        else:
            assert isinstance(renewed, Failure)
            assert renewed.reason is verdict
        self.model.carry_out(commands)

    @precondition(lambda self: self.model.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.model.give_back(self.model.draw(data))

    @invariant()
    def what_always_holds_of_slots(self) -> None:
        for holds in ALWAYS:
            holds(self.model)


TestSlots = pytest.mark.timeout(120)(SlotsMachine.TestCase)
TestSlots.settings = settings(
    max_examples=examples(300),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
