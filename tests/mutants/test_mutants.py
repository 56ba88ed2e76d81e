"""The table of mutants fits the product: each text stands once, what replaces it is Python, and its tests are there.

`make mutants` runs them.
"""

from __future__ import annotations

import ast

import pytest

from tests.arch.sources import ROOT
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

LEAST = 30


def test_there_are_enough_of_them_and_none_twice() -> None:
    assert len(MUTANTS) >= LEAST
    assert len({it.name for it in MUTANTS}) == len({(it.text, it.instead) for it in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda it: it.name)
def test_its_text_stands_once_and_its_tests_are_there(mutant: Mutant) -> None:
    places = mutant.places()
    assert len(places) == 1, f"adapt the text, not what is wrong: {mutant.text!r} in {mutant.package}"
    assert mutant.text != mutant.instead
    ast.parse(places[0].read_text("utf-8").replace(mutant.text, mutant.instead))
    assert [it for it in mutant.tests if not (ROOT / it).exists()] == []
