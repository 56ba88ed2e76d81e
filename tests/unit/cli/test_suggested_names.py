"""Names that are not there: the one that was meant, all that are as near, and what another kind has of that name."""

from __future__ import annotations

import pytest

from slotmesh.cli.parameters import unknown
from slotmesh.cli.shifting import read_policy
from slotmesh.names import did_you_mean
from slotmesh.spec.model import InvalidSpec

SHOPS = ["shop-v1", "shop-v9", "shop-v5", "till"]


@pytest.mark.parametrize(
    ("word", "known", "words"),
    [
        ("shop-v", SHOPS, "; did you mean shop-v1, shop-v5 or shop-v9?"),
        ("shop-v", SHOPS[:2], "; did you mean shop-v1 or shop-v9?"),
        ("--lease", ["--tls-key", "--tls-ca"], ""),
        ("--por", ["--port", "--proto"], "; did you mean --port?"),
        ("tlil", SHOPS, "; did you mean till?"),
        ("shop-v", [f"shop-v{number}" for number in range(9)], "; did you mean shop-v0, shop-v1 or shop-v2?"),
        ("nothing", SHOPS, ""),
    ],
)
def test_all_that_are_as_near_are_named(word: str, known: list[str], words: str) -> None:
    assert did_you_mean(word, known) == words


def test_a_name_of_another_kind_is_named_with_its_kind() -> None:
    known = ["backend/shop-v1", "endpoint/shop"]
    assert str(unknown("backend/shop", known)) == "there is no backend/shop; did you mean endpoint/shop?"
    assert str(unknown("backend/shop-v", known)) == "there is no backend/shop-v; did you mean backend/shop-v1?"
    assert str(unknown("backend/nope", ["backend/till"])) == "there is no backend/nope; there is backend/till"


def test_all_problems_of_weights_are_reported_those_of_names_too() -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_policy("shop", ["shop-v1=1", "shopv2=1"], ["tlil=0.5"], backends=SHOPS)
    lines = str(refused.value).splitlines()
    assert any("shop.traffic.shopv2" in it and "there is no backend shopv2" in it for it in lines), lines
    assert any("shop.shadows.tlil" in it and "did you mean till?" in it for it in lines), lines
    assert any("weights sum to 2" in it for it in lines), lines
    assert not any("shop-v1:" in it for it in lines), "that one is there"
