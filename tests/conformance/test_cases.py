"""The case files themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotmesh.conformance.case import BadCase, load_case, load_cases


def test_every_level_has_cases() -> None:
    assert {case.level for case in load_cases()} == {"basic", "windowed", "resumable"}


def test_a_level_includes_those_below_it() -> None:
    basic = next(case for case in load_cases() if case.level == "basic" and not case.needs)
    resumable = next(case for case in load_cases() if case.level == "resumable")
    assert not basic.mismatch("windowed", ())
    assert not resumable.mismatch("resumable", ("sessions",))
    assert resumable.mismatch("windowed", ("sessions",)) == "needs level resumable"


def test_a_case_applies_with_the_capabilities_that_it_needs_and_without_those_that_it_excludes() -> None:
    cases = {case.name: case for case in load_cases()}
    streaming, breaks = cases["basic/streaming"], cases["basic/stream_breaks"]
    assert streaming.mismatch("basic", ()) == "needs streaming"
    assert not streaming.mismatch("basic", ("streaming",))
    assert breaks.mismatch("resumable", ("sessions",)) == "not with sessions"
    assert not breaks.mismatch("resumable", ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a list", "a map"),
        ("about: x\nsteps: [{leap: 1}]", "unknown kind 'leap'"),
        ("about: x\nsteps: [{open: {}, send: {}}]", "has one kind"),
        ("about: x\nextra: 1\nsteps: []", "unknown fields"),
    ],
)
def test_what_is_no_case_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(text)
    with pytest.raises(BadCase, match=words):
        load_case(path)
