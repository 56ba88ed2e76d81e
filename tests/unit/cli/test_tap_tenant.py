"""`slotmesh tap --tenant`: what no tenant is called is refused, where it would wait for ever."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from slotmesh.cli.app import app


@pytest.mark.parametrize(("name", "why"), [("a\tb", "printable"), ("x" * 257, "at most 256 bytes")])
def test_the_name_of_no_tenant_is_refused(name: str, why: str) -> None:
    found = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["tap", "digits", "--tenant", name])
    assert found.exit_code == 2
    assert why in " ".join(found.output.split())
