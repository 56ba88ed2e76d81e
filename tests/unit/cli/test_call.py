"""`slotmesh call` takes the options that the SDK takes, and refuses what that refuses, in the same words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import pytest
import typer
from typer.testing import CliRunner

import slotmesh
from slotmesh.cli import app as cli
from slotmesh.cli.commands import call as command
from slotmesh.client.calls.options import ViewOptions, check_ordering_key

MATRIX: list[tuple[str, Any, dict[str, Any]]] = [
    ("--timeout", "0s", {"timeout": timedelta(0)}),
    ("--timeout", "0", {"timeout": 0}),
    ("--timeout", "250ms", {"timeout": 0.25}),
    ("--slo", "0s", {"slo": timedelta(0)}),
    ("--shard-key", "", {"shard_key": ""}),
    ("--affinity-key", "k", {"affinity_key": "k"}),
    ("--shard-key", "k" * 1024, {"shard_key": "k" * 1024}),
    ("--shard-key", "k" * 1025, {"shard_key": "k" * 1025}),
    ("--metadata", "tenant=ada=b", {"metadata": {"tenant": "ada=b"}}),
    ("--metadata", "empty=", {"metadata": {"empty": ""}}),
    ("--metadata", "grpc-x=1", {"metadata": {"grpc-x": "1"}}),
    ("--ordering-key", "", {"ordering_key": ""}),
    ("--ordering-key", "k", {"ordering_key": "k"}),
    ("--request-id", "order-7", {"request_id": "order-7"}),
    ("--request-id", "a b", {"request_id": "a b"}),
    ("--request-id", "", {"request_id": ""}),
    ("--ordering-key", "k" * 1025, {"ordering_key": "k" * 1025}),
]


@pytest.mark.parametrize(("flag", "text", "option"), MATRIX, ids=[f"{flag}={text[:8]}" for flag, text, _ in MATRIX])
def test_what_the_shell_and_the_sdk_take_is_the_same(
    flag: str, text: str, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ViewOptions] = []

    view_of = command.view_of

    def view(ordering_key: str | None, **changes: Any) -> NoReturn:
        made.append(view_of(ordering_key, **changes))
        raise typer.Exit

    monkeypatch.setattr(command, "view_of", view)
    said = CliRunner().invoke(cli.app, ["call", "e", "m", flag, text])
    expected = by_sdk(option)
    if isinstance(expected, ViewOptions):
        assert (said.exit_code, made) == (0, [expected])
    else:
        assert (said.exit_code, said.stderr.strip(), made) == (2, str(expected), [])


def by_sdk(option: dict[str, Any]) -> ViewOptions | slotmesh.BadRequest:
    """The view that the SDK makes, or its error."""
    given, key = dict(option), option.get("ordering_key")
    given.pop("ordering_key", None)
    try:
        if key is not None:
            check_ordering_key(key)
        return ViewOptions(content_type="application/json", ordering_key=key or "").changed(**given)
    except slotmesh.BadRequest as error:
        return error


def test_an_empty_ordering_key_is_refused_and_none_is_none() -> None:
    said = CliRunner().invoke(cli.app, ["call", "e", "m", "--ordering-key", ""])
    assert said.exit_code == 2
    assert "ordering_key must not be empty" in said.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--metadata", "tenant"],
        ["--metadata", "a=1", "--metadata", "a=2"],
        ["--repeat", "0"],
        ["--request-id", "1", "--repeat", "2"],
    ],
)
def test_what_is_no_setting_is_refused_before_anything_is_sent(flags: list[str]) -> None:
    said = CliRunner().invoke(cli.app, ["call", "e", "m", *flags])
    assert said.exit_code == 2
    assert flags[0] in said.stderr
