"""Seeded defects: each fits the code, lasts no longer than it should, and is found."""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from router_service.core.routing.endpoints import Partition
from simulation.__main__ import main
from simulation.mesh import plots
from simulation.mesh.defects import DEFECTS, Defect
from simulation.mesh.patching import Misfit, SourceChange, changed

_REFUSED = "router_service.core.routing.endpoints:Partition.refused"
_GUARANTEES = Path(__file__).parents[4] / "docs" / "guarantees.md"


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """CPython 3.11 may fail to parse while garbage is collected: `AST constructor recursion depth mismatch`."""
    gc.disable()
    yield
    gc.enable()


def _code_of(change: SourceChange) -> object:
    module, _, path = change.where.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    assert isinstance(found, FunctionType)
    return found.__code__


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_it_changes_the_code_and_is_undone(defect: Defect) -> None:
    before = [_code_of(change) for change in defect.changes]

    with changed(defect.changes):
        assert all(_code_of(change) is not code for change, code in zip(defect.changes, before, strict=True))

    assert all(_code_of(change) is code for change, code in zip(defect.changes, before, strict=True))


def test_there_are_thirty_at_least_of_all_processes() -> None:
    packages = [change.where.partition(".")[0] for defect in DEFECTS.values() for change in defect.changes]

    assert len(DEFECTS) >= 30
    assert {name: packages.count(name) > 3 for name in set(packages)} == {
        "router_service": True,
        "replica_service": True,
        "controller_service": True,
        "slotmesh": True,
    }


def test_each_names_plots_that_there_are_and_a_promise() -> None:
    promises = _GUARANTEES.read_text().lower()

    for defect in DEFECTS.values():
        assert set(defect.plots) <= plots.BY_NAME.keys()
        assert defect.promise in promises


def test_calls_of_changed_code_are_counted() -> None:
    partition = Partition("endpoint", 1)

    with changed([SourceChange(_REFUSED, "max(self.refused_epoch, owner_epoch)", "owner_epoch + 1")]) as reached:
        partition.refused(4)
        assert (partition.refused_epoch, reached.count) == (5, 1)

    partition.refused(7)
    assert (partition.refused_epoch, reached.count) == (7, 1)


@pytest.mark.parametrize(
    ("where", "old", "words"),
    [
        (_REFUSED, "min(self.refused_epoch", "0 times, not once"),
        (_REFUSED, "refused_epoch", "times, not once"),
        ("router_service.core.routing.endpoints:Partition.rejected", "x", "is not there"),
        ("router_service.core.rejections:reject", "x", "is not there"),
        ("router_service.core.routing.endpoints:Partition", "x", "is no function"),
    ],
)
def test_what_does_not_fit_is_refused(where: str, old: str, words: str) -> None:
    with pytest.raises(Misfit, match=words), changed([SourceChange(where, old, "pass")]):
        pass


def test_a_change_that_does_not_fit_undoes_those_before_it() -> None:
    fits = SourceChange(_REFUSED, "max(self.refused_epoch, owner_epoch)", "owner_epoch")
    before = _code_of(fits)

    with pytest.raises(Misfit), changed([fits, SourceChange(_REFUSED, "nonsense", "")]):
        pass

    assert _code_of(fits) is before


def test_a_defect_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    name = "departures_ignored"

    status = main(["mesh", "--defect", name, "--seeds", "20", "--first", "1000", "--processes", "1"])

    said = capsys.readouterr().out
    assert status == 0
    assert f"again: python -m simulation mesh --seed 1000 --plot replica_departs --defect {name} --trace" in said
