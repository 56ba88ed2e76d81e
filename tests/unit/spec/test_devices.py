"""Devices as text: pools, what a replica holds, and amounts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.spec.devices import (
    MAX_DEVICES,
    HeldDevice,
    amounts_of,
    difference,
    is_device,
    read_devices,
    read_pairs,
    read_pools,
    shown_amount,
    thousandths_of,
    written,
)
from slotmesh.spec.model import Backend
from slotmesh.spec.rules import backend_violations
from slotmesh.spec.writing import backend_settings
from tests.support.examples import examples


def test_names_without_a_pool_belong_to_the_pool_before() -> None:
    assert read_pools("cuda=0-3,fpga=a,b") == {"cuda": ("0", "1", "2", "3"), "fpga": ("a", "b")}
    assert read_pools(" cuda=GPU-8a56-01 , cuda=7") == {"cuda": ("GPU-8a56-01", "7")}
    assert read_pools("mig=0:1,0.1") == {"mig": ("0:1", "0.1")}
    assert read_pools("") == {}


@pytest.mark.parametrize("held", [("cuda=0", "cuda=0"), ("cuda=0", "cuda=0@0.5")])
def test_a_list_of_another_system_that_names_a_device_twice_differs(held: tuple[str, ...]) -> None:
    assert "differ from what its backend wants (cuda: 1)" in difference({"cuda": 1}, held)


def test_a_share_is_behind_the_name() -> None:
    held = read_devices("cuda=0,1@0.5")
    assert held == (HeldDevice("cuda", "0"), HeldDevice("cuda", "1", 500))
    assert [*map(str, held)] == ["cuda=0", "cuda=1@0.5"]
    assert amounts_of(held) == {"cuda": 1_500}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0-3", "write POOL=DEVICE"),
        ("cuda", "write POOL=DEVICE"),
        ("cuda=", "the name of a device"),
        ("cuda=a b", "the name of a device"),
        ("cuda=0,0", "cuda=0 is named twice"),
        ("cuda=0-1,cuda=1", "cuda=1 is named twice"),
        ("cuda=3-0", "a range has 1 to 256 numbers"),
        ("cuda=0-", "write a range with both ends, as 0-3"),
        ("cuda=0..3", "write a range with both ends, as 0-3"),
        ("cuda=0-256", "a range has 1 to 256 numbers"),
        ("cuda=0-255,256", "cuda has 257 devices"),
        ("cuda=0@0.5", "a pool has whole devices"),
        ("cuda=auto,0", "cuda has auto and other devices"),
        ("cuda=0@x", "could not convert"),
        ("cuda=0@2", "or a share of a device"),
    ],
)
def test_a_list_that_is_none_names_the_problem(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_pools(text)


def test_pairs_name_each_pool_once() -> None:
    assert read_pairs("cuda=HIP_VISIBLE_DEVICES, fpga=X") == {"cuda": "HIP_VISIBLE_DEVICES", "fpga": "X"}
    for wrong in ("cuda", "cuda=", "cuda=A,cuda=B", "=A"):
        with pytest.raises(ValueError, match="POOL=NAME"):
            read_pairs(wrong)


@pytest.mark.parametrize("text", ["cuda=0,1", "cuda", "cuda=0@1", "cuda=" + "x" * 200, "cuda=0-1", ""])
def test_other_texts_are_no_device(text: str) -> None:
    assert is_device("cuda=0")
    assert is_device("cuda=0@0.25")
    assert not is_device(text)


@pytest.mark.parametrize(
    "amount", [0.0, -1.0, 1.5, MAX_DEVICES + 1, 0.0005, 0.3333, float("nan"), float("inf"), float("-inf")]
)
def test_an_amount_is_a_whole_number_or_a_share_in_thousandths(amount: float) -> None:
    (violation,) = backend_violations(Backend(name="b", devices={"cuda": amount}))
    assert violation.path == "backends.b.devices.cuda"
    assert "a share" in violation.message


def test_pools_have_names_and_are_bounded() -> None:
    (violation,) = backend_violations(Backend(name="b", devices={"a pool": 1}))
    assert violation.path == "backends.b.devices.a pool"
    (violation,) = backend_violations(Backend(name="b", devices={f"p{number}": 1 for number in range(17)}))
    assert violation.message == "17 pools are named, at most 16 can be"


def test_documents_have_whole_numbers_as_such() -> None:
    assert backend_settings(Backend(name="b", devices={"cuda": 2.0, "fpga": 0.5})) == {
        "devices": {"cuda": 2, "fpga": 0.5}
    }


@settings(max_examples=examples(200))
@given(st.integers(1, 999))
def test_shares_are_exact(thousandths: int) -> None:
    assert thousandths_of(float(shown_amount(thousandths))) == thousandths
    assert thousandths_of(thousandths / 1000) == thousandths
    held = (HeldDevice("p", "d", thousandths),)
    assert read_devices(written(held)) == held
