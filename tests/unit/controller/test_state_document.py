"""What `slotmesh state import` refuses in a document, and reports of the file that it has made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.forms import BadDocument
from controller_service.store.state_document import export_state, import_into, import_state
from slotmesh.spec.model import Backend

DESIRED = Desired().apply(ChangeSet(put_backends=(Backend(name="b", handler="a:B", code="c" * 32),)))


def test_what_is_exported_is_known() -> None:
    assert import_state(export_state("a" * 32, DESIRED), epoch_floor=0).backends == DESIRED.backends


def test_an_unknown_section_is_refused_by_its_name() -> None:
    document = {**json.loads(export_state("a" * 32, DESIRED)), "newthing": 1, "another": {}}
    with pytest.raises(BadDocument, match="knows no 'another', 'newthing'"):
        import_state(json.dumps(document), epoch_floor=0)


@pytest.mark.parametrize("has_code", [False, True])
def test_a_state_without_the_code_beside_it_is_reported(
    has_code: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, state = tmp_path / "mesh.json", tmp_path / "new.state"
    document.write_text(export_state("a" * 32, DESIRED))
    if has_code:
        (tmp_path / "new.state.code").mkdir()
    assert import_into(state, str(document)) == 0
    assert (f"there is no {state}.code" in capsys.readouterr().err) is not has_code
