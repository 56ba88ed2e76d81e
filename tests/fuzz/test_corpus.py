"""What the hunt has kept is tried again with each run of the tests; inputs that found something have names."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotmesh.server.guards import GuardedRegistration
from tests.fuzz.hunt import CORPUS, with_hypothesis
from tests.fuzz.hunt import Hunt as FuzzHunt
from tests.fuzz.rpcs import recorded_handlers
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.rpcs import BENCHES, methods

GENERATED = (Path("slotmesh/v1"), Path("slotmesh/internal/v1"), Path("slotmesh/inference"))
MAX_CORPUS_BYTES = 8 * 1024
"""Of one target."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_finds_nothing(name: str) -> None:
    with TARGETS[name]() as run:
        for data in _corpus(name).values() or [b""]:
            run(data)


def test_corpora_are_small_and_of_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= TARGETS.keys()
    for name in TARGETS:
        assert sum(map(len, _corpus(name).values())) <= MAX_CORPUS_BYTES, name


def test_each_service_of_the_protos_has_targets() -> None:
    services = {path.stem for folder in GENERATED for path in folder.glob("*_service_pb2.py")}
    assert services == {module.__name__.rpartition(".")[2] for module in BENCHES}
    assert {f"rpcs-{method.containing_service.name}-{method.name}" for method, _ in methods()} <= TARGETS.keys()


def test_a_defect_is_found(tmp_path: Path) -> None:
    def run(data: bytes) -> None:
        if b"\x7f" in data:
            raise ZeroDivisionError

    hunt = FuzzHunt(run, tmp_path)
    hunt.try_one(b"fine")
    with_hypothesis(hunt, [], until=0.0)
    hunt.try_one(b"not \x7f")
    (name,) = hunt.findings.values()
    assert (tmp_path / name).read_bytes() == b"not \x7f"


def test_recording_leaves_the_registration_as_it_was() -> None:
    before = GuardedRegistration.add_registered_method_handlers
    with recorded_handlers():
        assert GuardedRegistration.add_registered_method_handlers is not before
    assert GuardedRegistration.add_registered_method_handlers is before


def _corpus(name: str) -> dict[str, bytes]:
    folder = CORPUS / name
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}
