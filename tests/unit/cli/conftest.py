"""Commands are made once: Typer's runner makes all of them anew for each that it invokes, a quarter of a second."""

from __future__ import annotations

from functools import cache

import pytest
import typer
import typer.testing

_command_of = cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def _made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typer.testing, "_get_command", _command_of)
