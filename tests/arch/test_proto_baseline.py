"""`make check-protos` refuses what breaks clients of the public protos, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.mesh import ROOT

BUF: Final = str(Path(sys.executable).with_name("buf"))
MAKEFILE: Final = (ROOT / "Makefile").read_text("utf-8")
PUBLIC: Final = "slotmesh/v1/call.proto"
INTERNAL: Final = "slotmesh/internal/v1/membership_service.proto"

Edit = Callable[[Path], None]


def buf(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    """What the Makefile runs for a target, there."""
    found = re.search(rf"^{target}:.*\n\t.*\$\(BIN\)/buf (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    command = found[1].replace("$(BASELINE)", "protos/baseline.binpb").split()
    return subprocess.run([BUF, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the protos, with a baseline of today."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.copy(ROOT / "buf.yaml", folder)
    shutil.copytree(ROOT / "protos", folder / "protos")
    made = buf(folder, "baseline")
    assert made.returncode == 0, made.stderr
    return folder


def replaced(path: str, pattern: str, by: str) -> Edit:
    def edit(protos: Path) -> None:
        text = (protos / path).read_text("utf-8")
        changed = re.sub(pattern, by, text, count=1, flags=re.MULTILINE)
        assert changed != text
        (protos / path).write_text(changed, "utf-8")

    return edit


def nothing(_protos: Path) -> None:
    """The protos stay."""


def removed_file(protos: Path) -> None:
    (protos / "slotmesh/v1/direct_service.proto").unlink()


_FIELD: Final = r"^  string message = \d+;$"


@pytest.mark.parametrize(
    ("edit", "refusal"),
    [
        (nothing, ""),
        (replaced(PUBLIC, _FIELD, r"\g<0>\n  string added = 900;"), ""),
        (replaced(PUBLIC, r"\Z", "message Added {}\n"), ""),
        (replaced(INTERNAL, r"^  string version = \d+;$", ""), ""),
        (replaced("inference/grpc_inference_service.proto", r"^package ", "// Theirs.\npackage "), ""),
        (replaced(PUBLIC, _FIELD, ""), 'with name "message" on message "Failure" was deleted'),
        (replaced(PUBLIC, _FIELD, r"  reserved 900;"), 'with name "message" on message "Failure" was deleted'),
        (replaced(PUBLIC, r"^  string message =", "  string text ="), 'name from "message" to "text"'),
        (replaced(PUBLIC, r"^  string message =", "  bytes message ="), 'from "string" to "bytes"'),
        (replaced(PUBLIC, r"EXECUTED_UNKNOWN = 2", "EXECUTED_PERHAPS = 2"), "EXECUTED_UNKNOWN"),
        (removed_file, "direct_service.proto"),
    ],
)
def test_only_additions_to_the_public_protos_pass(frozen: Path, tmp_path: Path, edit: Edit, refusal: str) -> None:
    shutil.copytree(frozen, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "protos")
    checked = buf(tmp_path, "check-breaking")
    assert checked.returncode == (100 if refusal else 0), checked.stdout + checked.stderr
    assert refusal in checked.stdout
