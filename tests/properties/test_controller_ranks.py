"""Ranks of replicas against a naive model: attachments, ends, restarts of the controller, and reported ranks."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller_service.core.observed import transitions
from controller_service.core.observed.member_messages import Hello
from controller_service.core.observed.replica_groups import unattached, with_all_unattached
from controller_service.core.observed.state import Observed
from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import ListedIncarnation
from tests.support.examples import examples


@dataclass
class Model:
    """A process that lives. Replicas are numbered as they begin."""

    began: int
    backend: str
    rank: int | None = None
    """As it was told last."""
    is_attached: bool = False


class Ranks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.begun = 0
        self.observed = Observed()
        self.models: dict[str, Model] = {}

    def owner(self, replica_id: str) -> Incarnation:
        return Incarnation(replica_id, f"{self.models[replica_id].began:032x}")

    def rank(self, replica_id: str) -> int | None:
        record = self.observed.replica(replica_id)
        assert record is not None
        return record.rank

    @rule(backend=st.sampled_from(["v1", "v1", "v2"]))
    def begin(self, backend: str) -> None:
        self.begun += 1
        self.models[f"r-{self.begun}"] = Model(self.begun, backend)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def attach(self, data: st.DataObject) -> None:
        """Also again, with the rank that it has: the lowest free one, or the same as before."""
        replica_id = data.draw(st.sampled_from([*self.models]))
        model, self.now = self.models[replica_id], self.now + 1
        owner = self.owner(replica_id)
        hello = Hello(
            replica_id=replica_id,
            incarnation=owner.incarnation,
            backend=model.backend,
            rank=model.rank,
            process_began_s=float(model.began),
        )
        known = {
            record.rank: self.models[record.replica_id]
            for record in self.observed.replicas(model.backend)
            if not record.gone and record.replica_id != replica_id
        }
        before = {name: self.rank(name) for name, it in self.models.items() if it.is_attached}
        self.observed = transitions.attached(self.observed, hello, now=self.now).observed
        rank, lowest = self.rank(replica_id), next(it for it in range(999) if it not in known)
        moved = {name for name, old in before.items() if self.rank(name) != old}
        if model.is_attached or (model.rank is not None and model.rank not in known):
            assert (rank, moved) == (model.rank, set())
        elif model.rank is None:
            assert (rank, moved) == (lowest, set())
        elif not (rival := known[model.rank]).is_attached:
            assert (rank, moved) == (model.rank, set()), "it lives, and it has attached"
        elif rival.began < model.began:
            assert (rank, moved) == (lowest, set())
        else:
            assert rank == model.rank
            assert [self.models[name] for name in moved] == [rival]
        model.is_attached = True
        for each, it in self.models.items():  # each is told its rank
            if it.is_attached:
                it.rank = self.rank(each)

    @precondition(lambda self: any(it.is_attached for it in self.models.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        replica_id = data.draw(st.sampled_from([name for name, it in self.models.items() if it.is_attached]))
        self.observed = transitions.ended(self.observed, self.owner(replica_id), "it ended", now=self.now).observed
        del self.models[replica_id]

    @rule(knows_ranks=st.booleans(), has_roster=st.booleans())
    def restart_the_controller(self, *, knows_ranks: bool, has_roster: bool) -> None:
        """With ranks of a router's table, with the roster of its store, or with nothing."""
        attached = {name: it for name, it in self.models.items() if it.is_attached}
        members = [
            ListedIncarnation(
                owner=self.owner(name),
                backend=it.backend,
                address="h:1",
                max_ongoing=1,
                rank=it.rank if knows_ranks else None,
            )
            for name, it in attached.items()
        ]
        records = (unattached(it, ("g", 1), must_fence_through=0, now=self.now) for it in members)
        self.observed = with_all_unattached(Observed(), records if has_roster else ())
        for it in attached.values():
            it.is_attached = False

    @invariant()
    def no_two_have_the_same(self) -> None:
        for backend in ("v1", "v2"):
            ranks = [it.rank for it in self.observed.replicas(backend) if it.has_attached and not it.gone]
            assert None not in ranks
            assert len(ranks) == len({*ranks})


Ranks.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=40, deadline=None)
TestRanks = Ranks.TestCase
