"""What is wrong with what was typed, in the words of the command line: no library's, and no Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from slotmesh.cli import main
from slotmesh.cli.app import app
from slotmesh.cli.local.child import check_import_path

FOREIGN = re.compile(r"Input should|Value error|unable to parse|pydantic|\[['\"]|is not a valid|Traceback")
"""Words of the libraries that read parameters."""


@pytest.mark.parametrize("arguments", [("call", "e", "\udcff"), ("broadcast", "\udcff", "m"), ("tap", "\udcff")])
def test_an_argument_that_is_no_utf_8_is_named(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["slotmesh", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "is no UTF-8" in (said := capsys.readouterr().err)
    assert r"'\udcff'" in said


def test_a_working_directory_that_is_no_utf_8_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "a\udcff").mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(typer.Exit) as ended:
        check_import_path()
    assert ended.value.exit_code == 2
    assert r"a\udcff' has no name in UTF-8: rename it, or use another; nothing was started" in capsys.readouterr().err


def told(*arguments: str) -> str:
    """What stderr has, without its frame."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 2, result.output
    return re.sub(r"[│╭╮╰╯─\s]+", " ", result.output)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("scale", "digits", "many"), "must be a whole number, is many"),
        (("scale", "digits", "-1"), "Invalid value for 'N': must be at least 0"),
        (("scale", "digits", "-1.5"), "Invalid value for 'N': must be at least 0"),
        (("scale", "digits", ""), "Invalid value for 'N': must be a whole number, is empty"),
        (("scale", "digits", "9" * 30), "Invalid value for 'N': must be at most 10000, is 999"),
        (("rollback", "-1"), "'REVISION': must be at least 0"),
        (("describe", "route/tiles"), "takes backend/NAME or endpoint/NAME, is route/tiles"),
        (("describe", "-1"), "no argument here begins with - and a digit"),
        (("certs", "init", "--hours", "1"), "'--hours': must be at least 24, is 1"),
        (("check", "--wait", "99999999999h"), "'--wait': the duration '99999999999h' is too long"),
        (("scale", "digits", "1.5"), "must be a whole number, is 1.5"),
        (("bench", "e", "m", "--rate", "fast"), "'--rate': must be a number, is fast"),
        (("bench", "e", "m", "--in-flight", "0"), "'--in-flight': must be at least 1, is 0"),
        (("tap", "e", "--rate", "2"), "'--rate': must be at most 1, is 2"),
        (("status", "--output", "xml"), "'xml' is not one of 'table', 'json', 'yaml', 'name'"),
        (
            ("status", "--address", "nowhere"),
            "(or SLOTMESH_CONTROLLER, SLOTMESH_ADDRESS): expected HOST:PORT or dns:///NAME:PORT",
        ),
        (("health", "--address", "nowhere"), "expected HOST:PORT or dns:///NAME:PORT"),
        (("run", "greeter"), "is 'greeter': write greeter:NAME"),
        (("run", "apps/greeter.py"), "is 'apps/greeter.py': write apps.greeter:NAME"),
        (("run", "./greeter.py"), "is './greeter.py': write greeter:NAME"),
        (("run", str(Path.cwd() / "apps/greeter.py")), "write apps.greeter:NAME"),
        (("run", "/elsewhere/tut/greeter.py"), "write greeter:NAME, in the folder /elsewhere/tut"),
    ],
)
def test_mistakes_are_told_in_own_words(arguments: tuple[str, ...], expected: str) -> None:
    text = told(*arguments)
    assert expected in text
    assert not FOREIGN.search(text), text


def test_http_without_its_extra_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.cli.commands.run.find_spec", lambda _: None)
    assert "needs the extra http: pip install 'slotmesh[http]'" in told("run", "greeter:Greeter", "--http", "0")


def _options(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each option of each command that takes a number, a duration or a choice, as it is typed."""
    for name, command in getattr(group, "commands", {}).items():
        yield from _options(command, (*path, name))
        hints = get_type_hints(command.callback) if getattr(command, "callback", None) else {}
        for param in command.params:
            wanted = [hints.get(param.name), *get_args(hints.get(param.name))]
            if any(isinstance(it, type) and issubclass(it, int | float | timedelta | Enum) for it in wanted):
                yield from ((*path, name, opt) for opt in param.opts if opt.startswith("--") and bool not in wanted)


def test_each_number_of_any_command_has_bounds() -> None:
    """One without an upper bound does not fit into a message to the mesh, or into the platform's integers."""
    without = {
        (*option[:-1], name)
        for option in _options(typer.main.get_command(app))
        for name, bounds in _bounds_of(option[:-1])
        if None in bounds
    }
    assert without == {("traffic", "step")}, "the controller has bounds for it, and a float fits"


def _bounds_of(path: tuple[str, ...]) -> Iterator[tuple[str, tuple[float | None, float | None]]]:
    """The numbers of a command, with what each is from and to."""
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    for name, hint in get_type_hints(command.callback, include_extras=True).items():
        kind, *more = get_args(hint) or (None,)
        if {int, float} & {kind, *get_args(kind)}:
            yield from ((name, (it.min, it.max)) for it in more if hasattr(it, "min") and it.parser is None)


def test_no_option_of_any_command_answers_in_foreign_words() -> None:
    options = [*_options(typer.main.get_command(app))]
    assert len(options) > 30
    for option in options:
        text = told(*option, "x?")
        assert "x?" in text, option
        assert not FOREIGN.search(text), (option, text)
