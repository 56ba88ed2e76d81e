"""`python -m simulation mesh`, as a person reads it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator

import pytest

from simulation.__main__ import main
from simulation.mesh import command, world
from simulation.mesh.history import Recorder
from simulation.mesh.workers import HASH_SEED, SeedVerdict
from tests.history.model import Violation

pytestmark = pytest.mark.slow


def test_many_seeds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["mesh", "--seeds", "3", "--first", "5", "--seconds", "2", "--plot", "stop_lanes"])

    said = capsys.readouterr().out
    assert re.search(
        r"^3 seeds from 5: \d+ s of virtual time, \d+ calls, in \d+ s \(.* CPU seconds a seed\)", said, re.MULTILINE
    )
    assert status == (0 if "everything holds" in said else 1)


def test_more_seeds_are_run_within_a_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run_seeds(seeds: Iterable[int], *_: object) -> Iterator[SeedVerdict]:
        for seed in seeds:
            now[0] += 1.0
            yield SeedVerdict(seed=seed, violations=[], digest="", calls=1, virtual_s=1.0, cpu_s=0.1, reached=0)

    now = [0.0]
    monkeypatch.setattr(command, "run_seeds", run_seeds)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    for asked, done in ((["--seeds", "3"], 3), (["--seeds", "3", "--within", "2"], 3), (["--within", "300"], 300)):
        assert main(["mesh", "--first", "5", *asked]) == 0
        assert capsys.readouterr().out.startswith(f"{done} seeds from 5: ")


def test_seeds_that_fail_are_told_with_the_command_that_repeats_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_seeds(seeds: Iterable[int], *_: object) -> Iterator[SeedVerdict]:
        for seed in seeds:
            violations = [("stuck", "it is stuck")] if seed == 6 else []
            yield SeedVerdict(seed=seed, violations=violations, digest="", calls=1, virtual_s=1.0, cpu_s=0.1, reached=0)

    monkeypatch.setattr(command, "run_seeds", run_seeds)

    assert main(["mesh", "--seeds", "3", "--first", "5"]) == 1
    said = capsys.readouterr().out
    assert "seed 6: stuck: it is stuck\n  again: python -m simulation mesh --seed 6 --trace\n" in said
    assert said.endswith("1 of 3 seeds do not hold\n")


def test_a_seed_that_fails_is_shrunk_and_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(recorder: Recorder, *, is_calm: bool) -> list[Violation]:
        """A router must never be killed, for this test."""
        return [] if is_calm else [Violation(invariant="killed", text=f"after {len(recorder.calls)} calls")]

    monkeypatch.setattr(world, "judge", judge)
    monkeypatch.setitem(os.environ, "PYTHONHASHSEED", HASH_SEED)

    status = main(["mesh", "--seed", "1", "--seconds", "2", "--plot", "no_table", "--trace"])

    said = capsys.readouterr().out
    assert status == 1
    before, _, after = said.partition("the smallest scenario that was found:")
    faults = re.compile(r"^  (?:kill|terminate) ", re.MULTILINE)
    assert len(faults.findall(before)) >= 3
    assert len(faults.findall(after)) == 1
    assert "killed: after" in after
    assert re.search(r"^ +\d+\.\d{6}  router0 +-> controller +AttachRouter hello", after, re.MULTILINE)


def test_a_seed_with_which_all_holds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "judge", lambda _recorder, *, is_calm: [])
    monkeypatch.setitem(os.environ, "PYTHONHASHSEED", HASH_SEED)

    assert main(["mesh", "--seed", "2", "--seconds", "2"]) == 0
    assert "everything holds" in capsys.readouterr().out


def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mesh", "--plot", "nonsense"])
    assert "keys_move" in capsys.readouterr().err
