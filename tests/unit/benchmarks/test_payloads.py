"""What the benchmark of payloads makes of what it measured, and which loads it has."""

from __future__ import annotations

import pytest

from benchmarks import payload_handler
from benchmarks.payloads import MOST_BYTES, SIZES, PayloadLoad, PayloadTurn, found, loads
from slotmesh.codec import decode, encode_arguments


def test_loads_stay_within_the_bytes_in_flight_and_have_names_of_their_own() -> None:
    assert len({load.name for load in loads()}) == len(loads())
    assert {load.size for load in loads()} == set(SIZES)
    assert all(load.in_flight * SIZES[load.size] <= MOST_BYTES for load in loads() if load.in_flight > 8)


def test_ratios_are_of_the_same_round_and_bounded_where_something_is_expected() -> None:
    rounds = [(PayloadTurn(100, 0.010, 0.002), PayloadTurn(60, 0.020, 0.005))] * 2
    rounds.append((PayloadTurn(1000, 1, 1), PayloadTurn(1, 100, 100)))
    figures = {each.name: each for each in found(PayloadLoad("1MB", "bytes", "echo", 8), rounds)}
    assert {name: (each.value, each.holds) for name, each in figures.items()} == {
        "payloads_1MB_bytes_echo_8_rate": (0.6, True),
        "payloads_1MB_bytes_echo_8_cpu": (2.5, True),
    }
    alone = {each.name: each for each in found(PayloadLoad("100B", "bytes", "size", 1), rounds)}
    assert (alone["payloads_100B_bytes_size_1_p50"].value, alone["payloads_100B_bytes_size_1_p50"].holds) == (2, False)
    assert alone["payloads_100B_bytes_size_1_rate"].holds is None


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["bytes", "array", "dataclasses"])
async def test_a_bare_server_answers_as_a_replica_does(kind: str) -> None:
    content_type, value = payload_handler.content_type(kind), payload_handler.value(kind, 1000)
    payload = encode_arguments(content_type, (value,), {})
    answers = payload_handler.answers()
    assert abs(len(payload) - 1000) < 150
    echoed = decode(content_type, await answers[f"{kind}_echo"](content_type, payload))
    assert len(echoed) == len(value)
    size = decode(content_type, await answers[f"{kind}_size"](content_type, payload))
    assert int(size) == {"bytes": 1000, "array": 1000, "dataclasses": len(value)}[kind]
