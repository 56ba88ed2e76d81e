"""A change of code and weights together: the code is rolled out, and the weights follow when that is complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.planning import Plan, plan_file, plan_mesh, users_of, with_effects
from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.rollback import plan_rollback, plan_undo_of_change
from controller_service.core.desired.shifts import ShiftPhase
from controller_service.core.desired.state import ChangeSet, Desired, RolloutRecord
from controller_service.core.observed.state import Observed
from controller_service.core.reconciling.shift_planning import hold_back, plan_end, plan_move, rollouts_of
from controller_service.core.reconciling.shift_steps import CallFlow, ShiftLook, follow
from controller_service.store.documents import SHIFT
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

NAMES = ("v1", "v2", "v3")


def backend(name: str, version: str = "1") -> Backend:
    return Backend(name=name, handler="a:b", version=version, num_replicas=1)


def endpoint(name: str, **weights: float) -> Endpoint:
    return Endpoint(name=name, traffic=TrafficPolicy(weights=weights))


def mesh(*endpoints: Endpoint, backends: tuple[str, ...] = NAMES, **versions: str) -> Mesh:
    return Mesh(backends=tuple(backend(it, versions.get(it, "1")) for it in backends), endpoints=endpoints)


class History:
    """A controller's configuration, and the clock of its changes."""

    def __init__(self) -> None:
        self.desired = Desired()
        self.time_s = 100.0

    def commit(self, plan: Plan) -> Plan:
        origin = ChangeOrigin(who="a test", note=plan.note, part_of=plan.part_of, time_s=self.time_s)
        self.desired = self.desired.apply(replace(plan.change, origin=origin))
        self.time_s += 1.0
        return plan

    def held(self, plan: Plan, *immediately: str) -> Plan:
        terms = {"launches": True, "who": "a test", "time_s": self.time_s}
        held = hold_back(self.desired, plan, immediately=immediately, **terms)  # type: ignore[arg-type]
        return self.commit(with_effects(self.desired, held, launches=True))

    def apply(self, said: Mesh, *immediately: str, prune: bool = False) -> Plan:
        return self.held(plan_mesh(self.desired, said, prune=prune, launches=True), *immediately)

    def apply_file(self, said: Mesh) -> Plan:
        return self.held(plan_file(self.desired, said, prune=False, launches=True, force=False))

    def roll_back(self, revision: int | None = None) -> Plan:
        if revision is None:
            newest = self.desired.history[-1].revision
            return self.held(plan_undo_of_change(self.desired, newest, launches=True))
        return self.held(plan_rollback(self.desired, revision, launches=True))

    def roll_out(self, *names: str) -> None:
        """The present settings of these backends run at all replicas."""
        records = []
        for name in names:
            present = self.desired.backends[name]
            records.append(RolloutRecord(backend=name, template=template_of(present), is_complete=True, good=present))
        self.desired = self.desired.apply(ChangeSet(put_rollouts=tuple(records)))

    def look(self) -> None:
        """As the controller looks at each shift."""
        for name, shift in self.desired.shifts.items():
            rollouts = rollouts_of(shift, self.desired, Observed())
            look = ShiftLook(is_due=True, figures={}, flow=CallFlow.UNKNOWN, ready=(), rollouts=rollouts)
            move = follow(shift, look, self.time_s)
            if move.record is not None:
                self.commit(plan_move(self.desired, self.desired.shifts[name], move))

    def weights(self, name: str = "e") -> dict[str, float]:
        policy = self.desired.endpoints[name].traffic
        return {} if policy is None else dict(policy.weights)


def start(*endpoints: Endpoint) -> History:
    """v1 has all of the traffic of `e`."""
    history = History()
    history.apply(mesh(*(endpoints or (endpoint("e", v1=1.0),))))
    history.roll_out(*NAMES)
    return history


@pytest.mark.parametrize("changed", ["v2", "v3"])
def test_weights_wait_for_each_rising_backend_with_new_code(changed: str) -> None:
    history = start()
    plan = history.apply(Mesh(backends=(backend(changed, "2"),), endpoints=(endpoint("e", v1=0.2, v2=0.4, v3=0.4),)))
    assert [(it.endpoint, it.backends) for it in plan.waits] == [("e", (changed,))]
    assert [it.field for it in plan.fields if it.resource == "endpoint/e"] == ["traffic"]
    assert plan.rolling == (changed,)
    history.look()
    assert history.weights() == {"v1": 1.0}
    history.roll_out(changed)
    history.look()
    assert history.weights() == {"v1": 0.2, "v2": 0.4, "v3": 0.4}
    assert history.desired.shifts["e"].phase is ShiftPhase.COMPLETE


def test_weights_wait_for_all_of_several_rollouts() -> None:
    history = start(endpoint("e", v1=1.0), endpoint("f", v1=1.0), endpoint("g", v1=1.0))
    target = {"v2": 0.5, "v3": 0.5}
    history.apply(mesh(*(endpoint(it, **target) for it in "efg"), v2="2", v3="2"))
    for name in ("v2", "v3"):
        history.look()
        assert [history.weights(it) for it in "efg"] == [{"v1": 1.0}] * 3
        history.roll_out(name)
    history.look()
    assert [history.weights(it) for it in "efg"] == [target] * 3


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (mesh(endpoint("e", v2=1.0)), "no code changes"),
        (mesh(endpoint("e", v2=1.0), v1="2"), "the code of what gets less changes"),
        (mesh(endpoint("e", v1=0.5, v2=0.5), v3="2"), "the code of another backend changes"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_weights_move_immediately(said: Mesh, why: str) -> None:
    history = start()
    assert not history.apply(said).waits, why
    assert history.weights() == dict((said.endpoints[0].traffic or TrafficPolicy(weights={})).weights)


def test_where_others_start_replicas_nothing_waits() -> None:
    history = start()
    plan = plan_mesh(history.desired, mesh(endpoint("e", v2=1.0), v2="2"), prune=False, launches=False)
    assert hold_back(history.desired, plan, launches=False, who="", time_s=1.0).change == plan.change


def test_backends_that_have_the_traffic_are_deleted_after_it_has_moved() -> None:
    history = start(endpoint("e", v2=0.5, v3=0.5))
    plan = history.apply(mesh(endpoint("e", v1=1.0), backends=("v1",), v1="2"), prune=True)
    assert plan.waits[0].deleted_afterwards == ("v2", "v3")
    assert set(history.desired.backends) == set(NAMES)
    history.roll_out("v1")
    history.look()
    assert set(history.desired.backends) == {"v1"}
    assert history.weights() == {"v1": 1.0}


def test_the_same_file_changes_nothing_while_its_traffic_waits() -> None:
    history = start()
    said = mesh(endpoint("e", v2=1.0), v2="2")
    history.apply_file(said)
    shift = history.desired.shifts["e"]
    again = history.apply_file(said)
    assert history.desired.shifts["e"] is shift
    assert not again.updated
    assert not again.conflicts
    assert again.waits, "it is what a client that waits waits for"


@pytest.mark.parametrize("how", ["weights of before", "other weights", "immediately", "rollback"])
def test_another_change_of_the_traffic_ends_the_wait(how: str) -> None:
    history = start()
    before = history.desired.configured_at
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    match how:
        case "weights of before":
            history.apply(Mesh(endpoints=(endpoint("e", v1=1.0),)), "e")
        case "other weights":
            history.apply(Mesh(endpoints=(endpoint("e", v3=1.0),)), "e")
        case "immediately":
            history.apply(Mesh(endpoints=(endpoint("e", v2=1.0),)), "e")
        case _:
            history.roll_back(before)
    expected = {"other weights": {"v3": 1.0}, "immediately": {"v2": 1.0}}.get(how, {"v1": 1.0})
    assert history.weights() == expected
    assert history.desired.shifts["e"].phase is ShiftPhase.OVERTAKEN
    history.roll_out("v2")
    history.look()
    assert history.weights() == expected, "it has ended"


def test_later_code_of_the_same_backend_is_waited_for() -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    history.apply(Mesh(backends=(backend("v2", "3"),)))
    history.look()
    assert history.desired.shifts["e"].is_waiting
    history.roll_out("v2")
    history.look()
    assert history.weights() == {"v2": 1.0}


def test_a_rollout_that_is_taken_back_leaves_the_traffic() -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=0.5, v3=0.5), v2="2", v3="2"))
    history.roll_out("v2")
    history.desired = history.desired.apply(ChangeSet(put_backends=(backend("v3"),)))  # the controller does, by itself
    history.roll_out("v3")
    history.look()
    assert history.weights() == {"v1": 1.0}
    shift = history.desired.shifts["e"]
    assert (shift.phase, shift.awaits, shift.deletes) == (ShiftPhase.ROLLED_BACK, {}, ())
    assert "v3" in shift.why


@pytest.mark.parametrize("is_complete", [True, False])
def test_code_and_traffic_are_undone_as_one_change(is_complete: bool) -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    if is_complete:
        history.roll_out("v2")
        history.look()
    history.roll_back()
    assert history.desired.backends["v2"].version == "1"
    assert history.weights() == {"v1": 1.0}
    assert not history.desired.shifts["e"].is_under_way


def test_what_others_have_changed_meanwhile_stays_as_it_is_undone() -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    history.apply(Mesh(endpoints=(endpoint("other", v3=1.0),)))
    history.roll_out("v2")
    history.look()
    history.roll_back()
    assert (history.desired.backends["v2"].version, history.weights()) == ("1", {"v1": 1.0})
    assert history.weights("other") == {"v3": 1.0}


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_revision_whose_traffic_waited_has_that_traffic(is_complete: bool) -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    revision = history.desired.configured_at
    history.apply(Mesh(endpoints=(endpoint("other", v3=1.0),)))
    if is_complete:
        history.roll_out("v2")
        history.look()
        history.apply(mesh(endpoint("e", v3=1.0)))
    history.roll_back(revision)
    history.roll_out("v2")
    history.look()
    assert (history.desired.backends["v2"].version, history.weights()) == ("2", {"v2": 1.0})
    assert "other" not in history.desired.endpoints


@pytest.mark.parametrize("goes_back", [True, False])
def test_an_operator_ends_the_wait(goes_back: bool) -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    history.commit(plan_end(history.desired, "e", goes_back=goes_back, who="a test", time_s=history.time_s))
    assert history.weights() == {"v1": 1.0}
    assert history.desired.shifts["e"].phase is ShiftPhase.STOPPED


def test_a_backend_that_traffic_waits_for_is_in_use() -> None:
    history = start()
    history.apply(mesh(endpoint("e", v2=1.0), v2="2"))
    assert users_of(history.desired, "v2") == ["e"]


def test_documents_of_waiting_shifts_are_read_as_written() -> None:
    history = start(endpoint("e", v2=0.5, v3=0.5))
    history.apply(mesh(endpoint("e", v1=1.0), backends=("v1",), v1="2"), prune=True)
    shift = history.desired.shifts["e"]
    assert SHIFT.read("e", SHIFT.write(shift)) == shift
