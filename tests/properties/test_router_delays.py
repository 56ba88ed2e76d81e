"""Calls that are delayed for a replica with their model, against a naive model: for how long, and for which replicas.

Invariants: a call waits beside room only if another replica has its model, or loads it, and is full; only while that is
shorter than a load; never beside room that calls with an SLO wait for. Each call has one outcome in the end.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router_service.core.events import HandlerStateReported
from router_service.core.preferences.delays import LOADS
from slotmesh.errors import Reason
from tests.support.examples import examples
from tests.unit.router.world import World
from tests.unit.router.world_callers import caller

LOAD_S = 4.0
NAMES = ("r0", "r1", "r2")
MODELS = st.sampled_from(["", "m0", "m1", "m2", "m3", "m4"])
NAME = st.sampled_from(NAMES)
PLACES = 2
SLOTS = 2
MAX_WAITING = 24
"""Fewer than a queue looks ahead."""


class DelaysMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World({"b": NAMES}, slots=SLOTS)
        self.now = 0.0
        self.next_call = 1
        self.callers = [caller(), caller()]
        self.waiting: dict[int, tuple[str, bool]] = {}
        """Model of each call that waits, and whether it has an SLO."""
        self.loaded: dict[str, frozenset[str]] = {name: frozenset() for name in NAMES}
        self.sent: dict[str, set[str]] = {name: set() for name in NAMES}
        """Models whose calls were sent to a replica since it reported last."""
        self.passed: dict[int, float] = {}
        """When each call first waited beside room."""
        self.idle_s = 0.0
        """Permit seconds that were free beside waiting calls since a call was last sent to a replica without its
        model."""
        for number, name in enumerate(NAMES):
            self.report(name, [f"m{number}"])

    def room(self) -> dict[str, int]:
        return {name: room for name in NAMES if (room := SLOTS - len(self.world.at_replica(name))) > 0}

    def follow(self) -> None:
        """What has left the queue since, and what is passed over now."""
        for call in self.waiting.keys() & self.world.outcomes.keys():
            assert self.world.outcomes[call] == Reason.QUEUE_TIMEOUT
            del self.waiting[call]
            self.passed.pop(call, None)
        for name in NAMES:
            for call in self.world.at_replica(name):
                if (gone := self.waiting.pop(call, None)) is not None:
                    self.passed.pop(call, None)
                    if gone[0] and gone[0] not in self.loaded[name]:
                        self.sent[name].add(gone[0])
                        self.idle_s = 0.0
        if self.room():
            for call in self.waiting:
                self.passed.setdefault(call, self.now)

    @precondition(lambda self: len(self.waiting) < MAX_WAITING)
    @rule(model=MODELS, who=st.integers(0, 1), has_slo=st.sampled_from([False, False, False, True]))
    def submit(self, model: str, who: int, has_slo: bool) -> None:
        call, self.next_call = self.next_call, self.next_call + 1
        self.waiting[call] = model, has_slo
        self.world.submit([call], by=self.callers[who], model_id=model, slo_s=0.5 if has_slo else None)
        self.follow()

    @rule(name=NAME)
    def complete(self, name: str) -> None:
        self.world.complete(name)
        self.follow()

    @rule(name=NAME, models=st.lists(st.sampled_from(["m0", "m1", "m2", "m3", "m4"]), max_size=PLACES, unique=True))
    def report(self, name: str, models: list[str]) -> None:
        """The replica has loaded these; what was sent there and is not among them may still be loaded."""
        self.loaded[name] = frozenset(models)
        self.sent[name] -= {*models}
        event = HandlerStateReported(self.world.replicas[name], {}, self.loaded[name], max_models=PLACES, load_s=LOAD_S)
        self.world.step(event)
        self.follow()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.waiting)))
        for who in self.callers:
            self.world.cancel((call, call), by=who)
        del self.waiting[call]
        self.passed.pop(call, None)
        self.follow()

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, LOAD_S]))
    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            due = self.world.scheduler.next_deadline()
            then = until if due is None else max(self.now, min(due, until))
            assert due is None or due > self.now, "the shell would step again and again"
            if self.waiting:
                self.idle_s += (then - self.now) * min(sum(self.room().values()), len(self.waiting))
            self.now = then
            self.world.at(then)
            self.follow()

    @invariant()
    def calls_wait_beside_room_only_for_a_full_replica_with_their_model(self) -> None:
        room = self.room()
        if not room:
            return
        for call, (model, _) in self.waiting.items():
            having = {name for name in NAMES if model in self.loaded[name] or model in self.sent[name]}
            assert having - room.keys(), f"call {call} of {model} waits beside {room}, and no full replica has it"
            assert not any(model in self.loaded[name] for name in room), f"{room} has the model of call {call}"
        assert not any(has_slo for _, has_slo in self.waiting.values())

    @invariant()
    def no_call_waits_beside_room_for_longer_than_a_load(self) -> None:
        if self.room():
            assert all(self.now - since < LOAD_S for since in self.passed.values())

    @invariant()
    def no_more_is_lost_by_waiting_than_loads_cost(self) -> None:
        assert self.idle_s <= LOADS * LOAD_S + 0.01

    def teardown(self) -> None:
        """All calls get through."""
        for _ in range(2 * MAX_WAITING):
            for name in NAMES:
                self.complete(name)
        assert not self.waiting


TestDelays = DelaysMachine.TestCase
TestDelays.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
