"""A state file against a naive model, under any sequence of changes, opened anew at any time."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller_service.core.desired.revisions import configuration_before, subject_of
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import Conflict
from controller_service.store.sqlite.state_file import StateFile, read_file
from controller_service.store.state_document import export_state, import_state
from slotmesh.spec.model import Mesh
from slotmesh.spec.routes import route_subject
from tests.support.examples import examples
from tests.support.state_changes import random_change

SEEDS = st.integers(0, 2**32)
CONFIGURED = ("backends", "endpoints", "routes")


def by_name(mesh: Mesh) -> tuple[dict[str, Any], ...]:
    return tuple({it.name: it for it in part} for part in (mesh.backends, mesh.endpoints, mesh.routes))


class Model:
    """What should be in the file, as plain dicts."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {
            name: {} for name in ("backends", "endpoints", "routes", "ownership", "applied", "rollouts")
        }
        self.shifts = set[str]()
        """Endpoints that were ever shifted. What becomes of a shift depends on what else changes its endpoint."""
        self.floor = 41
        self.roster: Any = Desired().roster
        self.configurations: dict[int, tuple[dict[str, Any], ...]] = {}

    def apply(self, change: ChangeSet, revision: int) -> None:
        parts = self.parts
        self.floor = max(self.floor, change.epoch_floor)
        for name in change.delete_endpoints:
            del parts["endpoints"][name]
            self.shifts.discard(name)
            if (owned := parts["ownership"].pop(name, None)) is not None:
                self.floor = max(self.floor, *owned.epochs)
        for name in change.delete_backends:
            parts["backends"].pop(name, None)
            parts["rollouts"].pop(name, None)
        parts["endpoints"].update({it.name: it for it in change.put_endpoints})
        kept = (it for it in change.put_backends if it.name not in change.delete_backends)
        parts["backends"].update({it.name: it for it in kept})
        parts["ownership"].update(change.put_ownership)
        parts["rollouts"].update({it.backend: it for it in change.put_rollouts if it.backend in parts["backends"]})
        self.shifts.update(it.endpoint for it in change.put_shifts)
        for path in change.delete_routes:
            del parts["routes"][path]
        parts["routes"].update({it.path: it for it in change.put_routes})
        parts["applied"].update({subject_of(it): it for it in change.put_applied})
        parts["applied"].update({f"{subject_of(it)}#spec": it for it in change.put_specified})
        for subject in (
            *(f"backend/{it}" for it in change.delete_backends),
            *(f"endpoint/{it}" for it in change.delete_endpoints),
            *(route_subject(it) for it in change.delete_routes),
        ):
            parts["applied"].pop(subject, None)
            parts["applied"].pop(f"{subject}#spec", None)
        self.roster = self.roster if change.put_roster is None else change.put_roster
        self.configurations[revision] = tuple(dict(parts[it]) for it in CONFIGURED)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="slotmesh-")
        self.path = Path(self.folder.name, "state")
        self.model = Model()

    def open(self) -> StateFile:
        return StateFile.open(self.path, lambda: ("a" * 32, Desired(epoch_floor=41)))

    @initialize()
    def create(self) -> None:
        self.file = self.open()

    @rule(seed=SEEDS)
    def change(self, seed: int) -> None:
        change = random_change(Random(seed), self.file.desired)
        after = self.file.commit(change, self.file.desired.revision)
        self.model.apply(change, after.revision)

    @rule(seed=SEEDS, off=st.sampled_from((-1, 1)))
    def change_of_another_revision(self, seed: int, off: int) -> None:
        with pytest.raises(Conflict):
            self.file.commit(random_change(Random(seed), self.file.desired), self.file.desired.revision + off)

    @rule()
    def open_again(self) -> None:
        before = self.file.desired
        self.file.close()
        self.file = self.open()
        assert self.file.desired == replace(before, revision=before.revision + 1)

    @rule()
    def carry_to_another_machine(self) -> None:
        text = export_state(self.file.generation, self.file.desired)
        assert json.loads(text)["generation"] == "a" * 32
        brought = import_state(text, epoch_floor=0)
        for part in (*CONFIGURED, "applied", "history", "revision", "configured_at"):
            assert getattr(brought, part) == getattr(self.file.desired, part)
        epochs = [epoch for owned in self.file.desired.ownership.values() for epoch in owned.epochs]
        assert brought.epoch_floor == max(self.file.desired.epoch_floor, *epochs, 0)

    @invariant()
    def what_is_told_is_in_the_file(self) -> None:
        desired = self.file.desired
        assert read_file(self.path) == ("a" * 32, desired)
        for part, expected in self.model.parts.items():
            assert dict(getattr(desired, part)) == expected
        assert set(desired.shifts) == self.model.shifts
        assert (desired.epoch_floor, desired.roster) == (self.model.floor, self.model.roster)

    @invariant()
    def each_revision_can_be_told(self) -> None:
        desired = self.file.desired
        for revision, expected in self.model.configurations.items():
            later = [it for it in desired.history if it.revision > revision]
            assert by_name(configuration_before(desired.resources, later)) == expected

    def teardown(self) -> None:
        if hasattr(self, "file"):
            self.file.close()
        self.folder.cleanup()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=examples(25), stateful_step_count=15, deadline=None)
