"""What people type as arguments, and what they are told when it is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.cli.console import CommandFailed
from slotmesh.cli.parameters import read_arguments

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(JSON_VALUES) | st.dictionaries(st.text(), JSON_VALUES))
def test_lists_and_objects_are_sent_as_they_are(value: object) -> None:
    assert json.loads(read_arguments(json.dumps(value, ensure_ascii=False))) == value


def test_no_digit_is_lost() -> None:
    assert read_arguments("[123456789012345678901234567890, 1.10]") == b"[123456789012345678901234567890, 1.10]"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_nothing_is_no_arguments(text: str) -> None:
    assert read_arguments(text) == b"[]"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("5", "a number"), ("1.5", "a number"), ('"x"', "a string"), ("null", "null"), ("true", "a bool")],
)
def test_a_single_value_is_refused_with_what_to_write(text: str, kind: str) -> None:
    with pytest.raises(CommandFailed, match=kind) as caught:
        read_arguments(f" {text}\n")
    assert str(caught.value).endswith(f"try [{text}]")


@pytest.mark.parametrize("text", ["[NaN]", "[-Infinity]", "[" * 100_000])
def test_what_only_python_takes_for_json_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="not JSON"):
        read_arguments(text)


@pytest.mark.parametrize(
    ("text", "line", "marked"),
    [
        ("[1, 2 3]", "line 1, column 7", "3"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6", "2"),
        ("[1, 2", "line 1, column 6", ""),
        ("[" + "1," * 500 + "x" + ",2" * 500 + "]", "line 1, column 1002", "x"),
    ],
)
def test_a_mistake_is_pointed_at(text: str, line: str, marked: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        read_arguments(text)
    message, shown, caret = str(caught.value).splitlines()
    assert line in message
    assert shown[caret.index("^") :][:1] == marked
    assert len(shown) < 80
