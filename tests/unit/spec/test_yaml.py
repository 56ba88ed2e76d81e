"""What YAML makes of a mesh file: merge keys, repeated keys, values of YAML 1.1, and all errors at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotmesh.cli.local.reloading import load_runnable
from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import InvalidSpec

MERGED = """
backends:
  small: &small
    handler: "app:Model"
    user_config: &config {<<: &sizes {size: 1, depth: 1}, size: 2}
  large:
    <<: *small
    user_config: {<<: *config, size: 3}
  larger:
    <<: *small
    user_config: {<<: [{depth: 9}, *config, *sizes], size: 4}
  twice:
    <<: *small
    user_config: {<<: *sizes, <<: {name: svc}, size: 5}
"""


def paths(text: str) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        parse_mesh(text)
    return sorted(str(it.path) for it in caught.value.violations)


def test_merge_keys_below_anchors_are_what_yaml_makes_of_them() -> None:
    mesh = parse_mesh(MERGED)
    assert [it.user_config for it in mesh.backends] == [
        {"size": 2, "depth": 1},
        {"size": 3, "depth": 1},
        {"size": 4, "depth": 9},
        {"size": 5, "depth": 1, "name": "svc"},
    ]
    assert [it.handler for it in mesh.backends] == ["app:Model"] * 4


@pytest.mark.parametrize(
    "text",
    [
        "backends: {a: {handler: 'x:Y', handler: 'x:Z'}}",
        "backends: {a: {handler: 'x:Y'}, a: {handler: 'x:Z'}}",
        "backends: {a: &a {size: 1}, b: {<<: *a, size: 1, size: 2}}",
    ],
)
def test_a_key_that_stands_twice_is_an_error(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is given twice"):
        parse_mesh(text)


@pytest.mark.parametrize(
    "text",
    [
        r'backends: {a: {handler: "x:Y", user_config: {b: "\ud800"}}}',
        r'backends: {a: {handler: "x:Y", env: {B: "\udc00\ud800"}}}',
        r'backends: {a: {handler: "x:Y", "\ud800": 1}}',
        r'endpoints: {e: {traffic: {"\ud83d": 1.0}}}',
    ],
)
def test_half_of_a_character_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"line 1.*half of a character"):
        parse_mesh(text)


@pytest.mark.parametrize("section", ["autoscale", "devices", "env", "pod"])
def test_a_key_that_is_no_text_is_to_be_quoted_in_each_section(section: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_mesh(f"backends: {{a: {{handler: 'x:Y', {section}: {{1: 2}}}}}}")
    assert f"backends.a.{section}: 1 is the number 1, not a name: quote it" in str(caught.value)


def test_two_escapes_of_one_character_are_that_as_in_json() -> None:
    (backend,) = parse_mesh(
        r'{"backends": {"a": {"handler": "x:Y", "user_config": {"\ud83d\ude00é": "\ud83d\ude00"}}}}'
    ).backends
    assert backend.user_config == {"\N{GRINNING FACE}é": "\N{GRINNING FACE}"}


SURPRISING = """
backends:
  v1:
    handler: "app:Model"
    user_config:
      country: no
      nested: {mode: 0644, times: [12:30, 1_000, 3:25.5, 0b11, YES]}
      base: &base {again: off}
      alias: *base
"""
PLAIN = """
backends:
  v1:
    handler: "app:Model"
    max_queued_calls: 1_000
    max_ongoing: 07
    user_config: {a: true, b: False, c: 10, d: 1.5, e: 1e3, f: "no", g: '0644', h: ~, i: 0, j: -3, k: 0x1f, l: none}
"""


def test_values_that_yaml_1_1_reads_otherwise_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    parse_mesh(SURPRISING)
    warned = [record.getMessage() for record in caplog.records]
    at = "backends.v1.user_config"
    assert [line.partition(":")[0] for line in warned] == [
        f"{at}.country",
        f"{at}.nested.mode",
        *(f"{at}.nested.times.{index}" for index in range(5)),
        f"{at}.base.again",
        f"{at}.alias.again",
    ]
    assert warned[0] == f"{at}.country: YAML reads it as a boolean; quote it if it is a text (line 6)"
    assert not any("0644" in line for line in warned), "a value may be secret"


def test_settings_of_another_base_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    text = "backends:\n  v1: {handler: 'a:B', num_replicas: 010, max_ongoing: 1:30, priority_weights: [0_7]}\n"
    with pytest.raises(InvalidSpec):
        parse_mesh(f"{text}endpoints: {{e: {{traffic: {{v1: 1:00.5}}}}}}")
    read, way_out = "YAML reads it as a number of base", "write it with decimal digits alone"
    assert [record.getMessage() for record in caplog.records] == [
        f"backends.v1.num_replicas: {read} 8, 2 or 60; {way_out} (line 2)",
        f"backends.v1.max_ongoing: {read} 8, 2 or 60; {way_out} (line 2)",
        f"endpoints.e.traffic.v1: {read} 60; {way_out} (line 3)",
    ]


def test_values_that_all_read_alike_are_not(caplog: pytest.LogCaptureFixture) -> None:
    parse_mesh(PLAIN)
    assert not caplog.records


def test_the_errors_of_all_sections_are_reported_together() -> None:
    text = """
backends: {a: {handler: "x:Y", num_replicas: -1}, b: {handler: nothing, nope: 3}}
endpoints: {e: {traffic: {a: -1}, foo: 2}, g: 3}
routes: {nope: {endpoint: e, method: m}, /x: {endpoint: e, method: m, methods: [FOO]}}
other: 3
"""
    assert paths(text) == [
        "backends.a.num_replicas",
        "backends.b.handler",
        "backends.b.nope",
        "endpoints.e.foo",
        "endpoints.e.traffic.a",
        "endpoints.g",
        "other",
        "routes./x.methods",
        "routes.nope",
    ]


def test_run_reports_what_its_file_lacks_together_with_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text("""
backends: {a: {num_replicas: -1}}
endpoints: {e: {traffic: {other: 1}, shadows: {another: 0.5}}}
routes: {/x: {endpoint: none, method: m}}
""")
    with pytest.raises(InvalidSpec) as caught:
        load_runnable(file)
    assert sorted(str(it.path) for it in caught.value.violations) == [
        "backends.a.handler",
        "backends.a.num_replicas",
        "endpoints.e.shadows.another",
        "endpoints.e.traffic.other",
        "routes./x.endpoint",
    ]
