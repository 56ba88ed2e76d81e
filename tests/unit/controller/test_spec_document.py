"""`mesh.yaml`: what is read, and that all mistakes are told at once, each with its path."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.convert.specification import mesh_from_wire, mesh_to_wire
from slotmesh.spec.document import load_mesh, parse_mesh
from slotmesh.spec.model import SETTINGS, Backend, Endpoint, InvalidSpec, Mesh, TrafficPolicy
from slotmesh.spec.rules import mesh_violations
from slotmesh.spec.sections import MAX_SPEC_BYTES
from slotmesh.spec.setting import FOREIGN


def mistakes(text: str) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as invalid:
        parse_mesh(text)
    assert str(invalid.value) == "\n".join(map(str, invalid.value.violations))
    return {mistake.path: mistake.message for mistake in invalid.value.violations}


def test_everything_that_can_be_said_is_read() -> None:
    mesh = parse_mesh("""
        backends:
          digits-v1:
            handler: "examples.digits.app:Digits"
            num_replicas: 2
            max_ongoing: 64
            prefetch: 0
            user_config: {model: centroid, deep: [1, 2.5, {a: null, b: true}]}
            max_queued_calls: 100
            max_queued_bytes: 16MiB
            max_queue_time: 250ms
            balancer: least_loaded
            graceful_timeout: 2m
            health_check_period: 500ms
            health_check_timeout: 5s
            own_loop: true
          plain: {}
        endpoints:
          digits: {traffic: {digits-v1: 1}, shadows: {plain: 0.1}}
          later:
    """)
    assert mesh == Mesh(
        backends=(
            Backend(
                name="digits-v1",
                handler="examples.digits.app:Digits",
                num_replicas=2,
                max_ongoing=64,
                prefetch=0,
                user_config={"model": "centroid", "deep": [1, 2.5, {"a": None, "b": True}]},
                max_queued_calls=100,
                max_queued_bytes=16 * 2**20,
                max_queue_time_s=0.25,
                graceful_timeout_s=120.0,
                health_check_period_s=0.5,
                health_check_timeout_s=5.0,
                own_loop=True,
            ),
            Backend(name="plain"),
        ),
        endpoints=(
            Endpoint(name="digits", traffic=TrafficPolicy(weights={"digits-v1": 1.0}, shadows={"plain": 0.1})),
            Endpoint(name="later"),
        ),
    )


@pytest.mark.parametrize("text", ["", "{}", "backends:\nendpoints:\n"])
def test_an_empty_mesh_is_a_mesh(text: str) -> None:
    assert parse_mesh(text) == Mesh()


def test_all_mistakes_are_told_at_once_with_their_paths() -> None:
    assert mistakes("""
        backends:
          v1: {handler: "no module", num_replicas: two, max_ongoing: 0, typo: 1, max_queue_time: 30, max_batch_size: 7,
               version: 1.0,
               max_queued_bytes: 12KX, balancer: round-robin, graceful_timeout: -1s,
               user_config: {day: 2024-01-01, x: .nan}}
          1: {}
          -bad: []
        endpoints:
          digits: {traffic: {v1: 0.4, v2: 0.5}}
          words: {traffic: {v1: "1", v2: 1.5}}
          none: {traffic: {}}
        more: 1
    """) == {
        "backends": "1 is the number 1, not a name: quote it",
        "backends.-bad": "must be a map, is a list",
        "backends.v1.balancer": "is 'round-robin'; did you mean round_robin? There are "
        "least_loaded, power_of_two, round_robin",
        "backends.v1.graceful_timeout": "expected a duration such as 250ms, 30s or 2m, got '-1s'",
        "backends.v1.handler": "must be MODULE:NAME, is 'no module'",
        "backends.v1.max_ongoing": "must be 1 … 1,000,000, is 0",
        "backends.v1.max_queue_time": "write it with its unit, as 250ms, 30s or 2m",
        "backends.v1.max_queued_bytes": "expected a size such as 64KiB or 4MiB, got '12KX'",
        "backends.v1.num_replicas": "must be a valid integer, is 'two'",
        "backends.v1.max_batch_size": "is called max_wire_batch_size now",
        "backends.v1.typo": "there is no such setting",
        "backends.v1.version": "must be a valid string, is the number 1.0: quote it",
        "backends.v1.user_config.day": "a date is no JSON value: make it a string",
        "backends.v1.user_config.x": "must be finite, is nan",
        "endpoints.digits.traffic": "weights sum to 0.9, must be 1: list all backends that get calls",
        "endpoints.none.traffic": "needs at least one backend with its weight, as {digits-v1: 1.0}",
        "endpoints.words.traffic.v1": "must be a valid number, is '1'",
        "more": "there are `backends`, `endpoints` and `routes` only",
    }


def test_unknown_keys_are_told_with_what_was_probably_meant() -> None:
    assert mistakes("""
        deployments: {}
        endpoint: {}
        backends:
          a: {handler: "apps/text.py:Sentiment", replicas: 2, max_ongoin: 3, max_replicas: 4,
              autoscale: {mni: 1, max_replicas: 3}, max_ongoing_requests: 5}
        endpoints:
          a: {weights: {a: 1.0}, shadow: {a: 0.1}, colour: red}
    """) == {
        "backends.a.autoscale.max_replicas": "there is no such setting; here it is `max`",
        "backends.a.autoscale.mni": "there is no such setting; did you mean min?",
        "backends.a.handler": "must be MODULE:NAME, is 'apps/text.py:Sentiment'; did you mean apps.text:Sentiment?",
        "backends.a.max_ongoin": "there is no such setting; did you mean max_ongoing?",
        "backends.a.max_ongoing_requests": "there is no such setting; here it is `max_ongoing`",
        "backends.a.max_replicas": "there is no such setting; here it is `autoscale: {max: …}`",
        "backends.a.replicas": "there is no such setting; here it is `num_replicas`",
        "deployments": "there are `backends`, `endpoints` and `routes` only; here it is `backends`",
        "endpoint": "there are `backends`, `endpoints` and `routes` only; did you mean endpoints?",
        "endpoints.a.colour": "there is no such setting",
        "endpoints.a.shadow": "there is no such setting; did you mean shadows?",
        "endpoints.a.weights": "there is no such setting; here it is `traffic`",
    }


def test_names_of_other_frameworks_lead_to_names_that_there_are() -> None:
    known = {*SETTINGS, *SETTINGS["autoscale"].settings, "backends", "endpoints", "traffic", "shadows"}
    for places in FOREIGN.values():
        assert {place.partition(":")[0] for place in places} <= known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: expected the node content, but found '<stream end>'"),
        ("backends:\n  v1: {}\n  v1: {}\n", "line 3: v1 is given twice"),
        ("- 1", "must be a map, is a list"),
        ("!!python/object:os.system {}", "line 1: could not determine a constructor"),
    ],
)
def test_what_is_no_mesh_is_refused(text: str, message: str) -> None:
    assert mistakes(text)[""].startswith(message)


@pytest.mark.parametrize(("weights", "ok"), [("{a: 0.3, b: 0.7}", True), ("{a: 0.1, b: 0.2, c: 0.7}", True)])
def test_weights_may_miss_one_by_what_floats_do(weights: str, ok: bool) -> None:
    assert bool(parse_mesh(f"endpoints: {{e: {{traffic: {weights}}}}}")) is ok
    assert "endpoints.e.traffic" in mistakes("endpoints: {e: {traffic: {a: 0.5, b: 0.50000002}}}")


def test_configuration_that_never_ends_is_refused() -> None:
    (message,) = mistakes("backends: &a {x: {user_config: *a}}").values()
    assert message == "line 1: *a is inside of itself"


def test_configuration_that_aliases_multiply_is_refused_at_once() -> None:
    levels = "".join(f"      l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    (message,) = mistakes(f"backends:\n  v1:\n    user_config:\n      l0: &l0 [1]\n{levels}").values()
    assert message == "line 10: there are more than 1,000,000 values, those behind aliases counted each time"


@pytest.mark.parametrize("given", ["hush", "[hush]", "17", "[{a: hush}]"])
def test_what_a_handler_is_configured_with_stands_in_no_message(given: str) -> None:
    (message,) = mistakes(f"backends: {{b: {{handler: 'a:B', user_config: {given}}}}}").values()
    assert message == "must be a map"


@pytest.mark.parametrize("text", ["backends: {v1: {num_replicas: 0xHUGE}}", "backends: 0xHUGE"])
def test_numbers_too_long_to_write_out_are_mistakes_as_others_are(text: str) -> None:
    (told,) = mistakes(text.replace("HUGE", "f" * 5_000)).values()
    assert told == "line 1: a number of 5002 characters; quote it where it is a text"


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be read: No such file"):
        load_mesh(tmp_path / "mesh.yaml")
    large = tmp_path / "large.yaml"
    large.write_text("#" * (MAX_SPEC_BYTES + 1), "ascii")
    with pytest.raises(InvalidSpec, match="is larger than"):
        load_mesh(large)


NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
BACKENDS = st.builds(
    Backend,
    name=NAMES,
    handler=st.sampled_from(["", "a:B", "pkg.mod:Outer.Inner"]),
    num_replicas=st.none() | st.integers(0, 10_000),
    max_ongoing=st.none() | st.integers(1, 1_000_000),
    prefetch=st.none() | st.integers(0, 1_000_000),
    user_config=st.dictionaries(NAMES, JSON, max_size=3),
    max_queued_calls=st.integers(1, 10_000_000),
    max_queued_bytes=st.integers(1, 2**40),
    max_queue_time_s=st.integers(1, 86_400_000).map(lambda ms: ms / 1e3),
    graceful_timeout_s=st.integers(0, 86_400_000).map(lambda ms: ms / 1e3),
    health_check_period_s=st.none() | st.integers(10, 86_400_000).map(lambda ms: ms / 1e3),
    health_check_timeout_s=st.none() | st.integers(10, 86_400_000).map(lambda ms: ms / 1e3),
    own_loop=st.none() | st.booleans(),
)


@given(
    backends=st.lists(BACKENDS, max_size=4, unique_by=lambda backend: backend.name), parts=st.lists(st.integers(1, 9))
)
def test_the_wire_carries_the_model_without_loss(backends: list[Backend], parts: list[int]) -> None:
    weights = {f"b{number}": part / sum(parts) for number, part in enumerate(parts)}
    policy = TrafficPolicy(weights=weights) if weights else None
    mesh = Mesh(backends=tuple(backends), endpoints=(Endpoint(name="e", traffic=policy),))
    assert mesh_from_wire(mesh_to_wire(mesh)) == (mesh, [])
    assert not mesh_violations(mesh)
