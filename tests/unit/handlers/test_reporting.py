"""`slotmesh.report`: which figures are accepted, and where it may be called."""

from __future__ import annotations

import threading
from math import inf, nan

import numpy as np
import pytest

import slotmesh
import slotmesh.testing
from slotmesh.calls.handler_figures import (
    MAX_EVICTED,
    MAX_FIGURE_CHARS,
    MAX_FIGURES,
    MAX_MODEL_CHARS,
    MAX_MODELS,
    NOTHING_EVICTED,
    Evicted,
)
from slotmesh.handlers.reporting import HandlerState


def test_each_call_replaces_the_names_it_has() -> None:
    with slotmesh.testing.reports() as reported:
        slotmesh.report(kv_free=0.5, jobs=7)
        slotmesh.report(kv_free=np.float32(0.25))
        assert reported.figures == {"kv_free": 0.25, "jobs": 7.0}
        slotmesh.report(jobs=None, unknown=None)
        assert reported.figures == {"kv_free": 0.25}


@pytest.mark.parametrize(
    ("figures", "error", "words"),
    [
        ({"a": inf}, ValueError, "a must be finite"),
        ({"a": nan}, ValueError, "a must be finite"),
        ({"a": 10**400}, ValueError, "a must be finite"),
        ({"a": "0.5"}, TypeError, "a must be a number, got str"),
        ({"a" * (MAX_FIGURE_CHARS + 1): 1}, ValueError, "1 … 64 printable characters"),
        ({"": 1}, ValueError, "1 … 64 printable characters"),
        ({"\udc80": 1}, ValueError, "1 … 64 printable characters"),
        ({f"n{index}": 1 for index in range(MAX_FIGURES)}, ValueError, "at most 32 names"),
    ],
)
def test_an_invalid_report_changes_nothing(figures: dict[str, float], error: type[Exception], words: str) -> None:
    with slotmesh.testing.reports() as reported:
        slotmesh.report(kept=1)
        with pytest.raises(error, match=words):
            slotmesh.report(**{"kept": 2, **figures})
        assert reported.figures == {"kept": 1.0}


def test_bounds_are_accepted() -> None:
    with slotmesh.testing.reports() as reported:
        slotmesh.report(**{f"{index:064}": 1 for index in range(MAX_FIGURES)})
        assert len(reported.figures) == MAX_FIGURES


def test_what_has_not_changed_is_no_change() -> None:
    changes: list[int] = []
    state = HandlerState()
    state.on_change = lambda: changes.append(state.figures_version)
    state.report({"a": 1})
    state.report({"a": 1.0})
    state.report({"b": None})
    state.report({"a": 2})
    assert changes == [1, 2]


def test_models_are_reported_as_far_as_the_bounds_allow() -> None:
    state = HandlerState()
    state.loaded(f"m{index}" for index in range(MAX_MODELS + 1))
    assert len(state.models) == MAX_MODELS
    state.loaded(["x" * (MAX_MODEL_CHARS - 1), "y", "z"])
    assert [each[0] for each in state.models] == ["x", "y"]


def test_outside_of_a_replica_the_error_names_the_way() -> None:
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            slotmesh.report(a=1)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(timeout=10)
    assert "outside of a replica" in str(errors[0])
    assert "slotmesh.testing.reports()" in str(errors[0])


def test_evicted_blocks_are_kept_until_they_are_sent() -> None:
    state = HandlerState()
    state.evicted([1, 2])
    first, sent = state.evicted_since(0)
    assert (first, sent) == (Evicted((1, 2)), 2)
    assert state.evicted_since(sent) == (NOTHING_EVICTED, 2)
    state.evicted(np.array([3], dtype=np.uint64))
    assert state.evicted_since(sent) == (Evicted((3,)), 3)
    assert state.evicted_since(1) == (Evicted((2, 3)), 3)


def test_all_evicted_is_before_what_follows() -> None:
    state = HandlerState()
    state.evicted([1])
    state.all_evicted()
    assert state.evicted_since(0) == (Evicted(is_all=True), 2)
    state.evicted([2])
    assert state.evicted_since(1) == (Evicted((2,), is_all=True), 3)
    assert state.evicted_since(2) == (Evicted((2,)), 3)


def test_of_more_than_is_kept_all_are_reported() -> None:
    state = HandlerState()
    state.evicted(range(MAX_EVICTED))
    assert state.evicted_since(0)[0] == Evicted(tuple(range(MAX_EVICTED)))
    state.evicted([7])
    found = state.evicted_since(0)[0]
    assert (len(found.blocks), found.is_all) == (MAX_EVICTED, True)


def test_what_is_no_hash_is_refused_and_nothing_is_reported() -> None:
    changes: list[int] = []
    state = HandlerState()
    state.on_change = lambda: changes.append(state.evictions)
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=f"got {wrong}"):
            state.evicted([1, wrong])
    with pytest.raises(TypeError, match=r"slotmesh\.report_evicted takes hashes, which are integers: 'str' object"):
        state.evicted(["x"])  # type: ignore[list-item]
    state.evicted([])
    assert changes == []
    with pytest.raises(RuntimeError, match="outside of a replica"):
        slotmesh.report_evicted([1])
    with pytest.raises(RuntimeError, match="outside of a replica"):
        slotmesh.report_evicted_all()
