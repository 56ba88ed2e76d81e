"""The options that both sides share, and the few that follow from the machine."""

from __future__ import annotations

import importlib.util
import resource
from pathlib import Path

import pytest

from slotmesh.runtime.channels import CHANNEL_OPTIONS, MAX_METADATA_BYTES, server_options


def test_no_option_is_given_twice() -> None:
    for options in (CHANNEL_OPTIONS, server_options()):
        names = [name for name, _ in options]
        assert sorted(names) == sorted(set(names))


def test_the_installed_grpc_knows_every_option() -> None:
    # An option that is misspelt is ignored without a word.
    core = importlib.util.find_spec("grpc._cython.cygrpc")
    assert core is not None
    assert core.origin is not None
    strings = Path(core.origin).read_bytes()
    names = {name for name, _ in (*CHANNEL_OPTIONS, *server_options())}
    assert not [name for name in names if name.encode() not in strings]


@pytest.mark.parametrize("options", [dict(CHANNEL_OPTIONS), dict(server_options())], ids=["channel", "server"])
def test_metadata_has_one_limit(options: dict[str, int]) -> None:
    assert options["grpc.max_metadata_size"] == options["grpc.absolute_max_metadata_size"] == MAX_METADATA_BYTES


def test_a_server_lets_clients_ping_as_often_as_they_do() -> None:
    permitted = dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"]
    assert permitted <= dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]


@pytest.mark.parametrize("options", [dict(CHANNEL_OPTIONS), dict(server_options())], ids=["channel", "server"])
def test_a_ping_is_given_up_after_the_timeout_of_keepalives(options: dict[str, int]) -> None:
    # gRPC waits a minute for any ping unless it is given a time: `basic/router_vanishes` of the conformance suite.
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(1_024, 512), (1_000_000, 10_000), (resource.RLIM_INFINITY, 10_000)]
)
def test_half_of_the_descriptors_stay_for_everything_else(
    descriptors: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert dict(server_options())["grpc.max_allowed_incoming_connections"] == connections
    of_two = dict(server_options(listeners=2))["grpc.max_allowed_incoming_connections"]
    assert of_two == min(10_000, connections // 2 if descriptors == 1_024 else connections)
