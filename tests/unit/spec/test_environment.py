"""Environment variables in documents: what is valid, and that messages never repeat a value, which may be a secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.spec.document import parse_mesh
from slotmesh.spec.environment import (
    MAX_ENVIRONMENT_BYTES,
    MAX_VALUE_CHARS,
    MAX_VARIABLES,
    EnvironmentValue,
    looks_secret,
    problems_of,
    value_of,
    written_environment,
)
from slotmesh.spec.model import SETTINGS, Backend, InvalidSpec
from slotmesh.spec.rules import backend_violations
from slotmesh.spec.writing import shown_setting
from tests.support.examples import examples

SECRET = "hunter-2-of-this-test"
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
PATHS = st.text(st.characters(categories=("L", "N"), include_characters="/._-"), min_size=1, max_size=20)
VALUES = st.one_of(
    st.builds(lambda it: EnvironmentValue(value=it), TEXTS),
    st.just(EnvironmentValue(inherit=True)),
    st.builds(lambda it: EnvironmentValue(file=it), PATHS),
)


@settings(max_examples=examples(200))
@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), VALUES, max_size=5))
def test_what_is_written_reads_back_and_obeys_the_rules(environment: dict[str, EnvironmentValue]) -> None:
    written = written_environment(environment)
    assert {name: value_of(it) for name, it in written.items()} == environment
    bad = {name for name, _ in problems_of(environment)}
    assert bad == {name for name in environment if name.startswith("SLOTMESH_") or name == "POD_IP"}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("A: 3", "env.A: must be text, {inherit: true} or {file: PATH}: quote it"),
        ("A: true", "env.A: must be text, {inherit: true} or {file: PATH}: quote it"),
        ("A: {inherit: false}", "env.A: must be text, {inherit: true} or {file: PATH}"),
        ("A: {file: ''}", "env.A: must be text, {inherit: true} or {file: PATH}"),
        ("A: {file: x, inherit: true}", "env.A: must be text, {inherit: true} or {file: PATH}"),
        (f"A: {{value: {SECRET}}}", "env.A: must be text, {inherit: true} or {file: PATH}"),
        (f"A: [{SECRET}]", "env.A: must be text, {inherit: true} or {file: PATH}"),
        (f'A: "{SECRET}\\0"', "env.A: must be at most 32,768 characters without NUL: put it into a file"),
        (f"A-B: {SECRET}", "env.A-B: a variable has a name of 1 to 128"),
        (f"9: {SECRET}", "env: 9 is the number 9, not a name: quote it"),
        (f"SLOTMESH_TOKEN: {SECRET}", "env.SLOTMESH_TOKEN: is set by slotmesh itself: leave it out"),
        (f"PYTHONUNBUFFERED: {SECRET}", "env.PYTHONUNBUFFERED: is set by slotmesh itself: leave it out"),
        (f"POD_IP: {SECRET}", "env.POD_IP: is set by slotmesh itself: leave it out"),
    ],
)
def test_a_violation_names_the_variable_and_not_its_value(entry: str, problem: str) -> None:
    with pytest.raises(InvalidSpec) as invalid:
        parse_mesh(f"backends: {{b: {{handler: a:B, env: {{{entry}}}}}}}")
    assert f"backends.b.{problem}" in str(invalid.value)
    assert SECRET not in str(invalid.value)


def test_text_that_utf_8_cannot_carry_is_a_violation() -> None:
    half = "\ud800"
    backend = Backend(
        name="b", env={"A": EnvironmentValue(value=half)}, user_config={"a": [half], "é": {half: "é"}, "x": ""}
    )
    assert [str(it.path) for it in backend_violations(backend)] == [
        "backends.b.user_config.é",
        "backends.b.user_config.a[0]",
        "backends.b.env.A",
    ]


def test_a_text_in_place_of_the_map_is_not_repeated() -> None:
    with pytest.raises(InvalidSpec) as invalid:
        parse_mesh(f"backends: {{b: {{handler: a:B, env: {SECRET}}}}}")
    assert str(invalid.value) == "backends.b.env: must be a map"


def test_it_is_bounded() -> None:
    def fits(environment: dict[str, EnvironmentValue]) -> bool:
        return not [*backend_violations(Backend(name="b", env=environment))]

    def variables(count: int) -> dict[str, EnvironmentValue]:
        return {f"V{number}": EnvironmentValue(inherit=True) for number in range(count)}

    def of_bytes(count: int) -> dict[str, EnvironmentValue]:
        whole, rest = divmod(count, 20_000)
        sizes = [20_000] * whole + [rest] * (rest > 0)
        return {f"V{number}": EnvironmentValue(value="x" * (size - 2)) for number, size in enumerate(sizes)}

    assert fits(variables(MAX_VARIABLES))
    assert not fits(variables(MAX_VARIABLES + 1))
    assert fits({"A": EnvironmentValue(value="x" * MAX_VALUE_CHARS)})
    assert not fits({"A": EnvironmentValue(value="x" * (MAX_VALUE_CHARS + 1))})
    assert fits(of_bytes(MAX_ENVIRONMENT_BYTES))
    assert not fits(of_bytes(MAX_ENVIRONMENT_BYTES + 1))
    assert fits({"A" * 128: EnvironmentValue(file="x" * 4_096)})
    assert not fits({"A" * 129: EnvironmentValue(value="")})
    assert not fits({"A": EnvironmentValue(file="x" * 4_097)})


@pytest.mark.parametrize("name", ["API_KEY", "DB_PASSWORD", "token", "HF_TOKEN", "MY_SECRET_ID", "apikey", "KEY"])
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name, EnvironmentValue(value="x"))
    assert not looks_secret(name, EnvironmentValue(file="/x"))
    assert not looks_secret(name, EnvironmentValue(inherit=True))
    assert not looks_secret(name, EnvironmentValue(value=""))


@pytest.mark.parametrize("name", ["KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "SECRETARY", "LANG"])
def test_other_names_are_not(name: str) -> None:
    assert not looks_secret(name, EnvironmentValue(value="x"))


def test_a_diff_shows_paths_and_not_contents() -> None:
    environment = {"B": EnvironmentValue(value="1"), "A": EnvironmentValue(file="/run/a")}
    assert shown_setting(SETTINGS["env"], environment) == '{"A": {"file": "/run/a"}, "B": "1"}'
    assert shown_setting(SETTINGS["env"], {}) == "unset"
