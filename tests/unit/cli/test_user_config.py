"""A handler's configuration as people type it."""

from __future__ import annotations

import re

import pytest
import typer

from slotmesh.cli.commands.run import read_config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("svc", "svc"),
        ("", ""),
        ("a=b", "a=b"),
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("NaN", "NaN"),
        ("1.2.3", "1.2.3"),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ('{"a": {"b": []}}', {"a": {"b": []}}),
    ],
)
def test_a_value_is_json_where_it_is_json_else_text(text: str, value: object) -> None:
    assert read_config([f"k={text}", "other=1"]) == {"k": value, "other": 1}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["model"], "must be KEY=VALUE, as model=svc, is 'model'"),
        (["=svc"], "must be KEY=VALUE"),
        (["a=1", "a=2"], "a is given twice: all values of one argument are a list"),
        (["sizes=[1, 2"], "or make it a string: 'sizes=\"[1, 2\"'"),
        (["sizes={a: 1}"], "sizes: {a: 1} begins as JSON and is none (Expecting"),
        (["sizes=[NaN]"], "NaN is no JSON number"),
        (["sizes=" + "[" * 100_000], "nested too deeply"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(settings: list[str], told: str) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(told)):
        read_config(settings)
