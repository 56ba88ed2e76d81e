"""YAML that is hostile, or odd, costs no more than its text, and is refused with words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from slotmesh.config import Settings, SettingsError
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import InvalidSpec
from slotmesh.spec.safe_yaml import read_yaml

LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]
)
MERGES = "\n".join(
    ["a0: &a0 {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1, j: 1}"]
    + [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, 9)]
)
REFUSED = {
    "a billion laughs": LAUGHS,
    "a billion merges": MERGES,
    "a list inside of itself": "a: &a [*a]",
    "a number of base 60": "a: 1" + ":1" * 1_000,
    "a float of base 60": "a: 190" + ":20" * 400 + ".5",
    "a number of 5,000 digits": "a: " + "9" * 5_000,
    "a day that is none": "a: 2026-99-99",
    "text with the tag of numbers": "a: !!int x",
    "text with the tag of booleans": "a: !!bool x",
    "text with the tag of times": "a: !!timestamp x",
    "no digits": "a: 0x_",
    "deep lists": "[" * 2_000,
    "deep lists in one line": "- " * 2_000,
    "bytes that are no text": b"\xff\xfe\x00",
    "the tag of an object": "!!python/object:os.system x",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_it_is_refused_with_words(text: str | bytes) -> None:
    with pytest.raises(yaml.YAMLError, match=r"\w{3}"):
        read_yaml(text)
    with pytest.raises(InvalidSpec):
        parse_mesh(text)


@pytest.mark.parametrize("text", [text for text in REFUSED.values() if isinstance(text, str)])
def test_a_file_of_settings_is_refused_alike(text: str, tmp_path: Path) -> None:
    class Odd(Settings):
        """Odd ones."""

    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="is not valid YAML"):
        Odd.parse([f"--config={path}"], {}, prog="odd")


def test_aliases_and_merges_in_moderation_are_read() -> None:
    text = "base: &base {a: 1}\nmore: {<<: *base, b: 2}\nlist: [*base, *base]"
    assert read_yaml(text) == {"base": {"a": 1}, "more": {"a": 1, "b": 2}, "list": [{"a": 1}, {"a": 1}]}


def test_more_laughs_cost_no_more_steps() -> None:
    steps = []
    for levels in (8, 12):
        count = 0

        def profile(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(profile)
        try:
            with pytest.raises(yaml.YAMLError, match="more than"):
                read_yaml("\n".join(LAUGHS.splitlines()[:levels]))
        finally:
            sys.setprofile(None)
        steps.append(count)
    assert steps[1] < steps[0] * 1.5
