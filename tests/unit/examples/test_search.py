"""The search example: three handlers in one process, and what its corpus is."""

from __future__ import annotations

import pytest

import slotmesh.testing
from examples.search import corpus
from examples.search.app import Embed, Finder, Found, Rank


@pytest.mark.asyncio
async def test_one_handler_calls_the_others() -> None:
    async with slotmesh.testing.mesh({"Embed": Embed, "Rank": Rank}) as mesh:
        await mesh.apply({"Finder": Finder}, {"Finder": {"Finder": 1.0}})
        find = mesh.endpoint("Finder").find.returning(list[Found])
        for document in corpus.DOCUMENTS:
            found = await find(document, 3)
            assert found[0] == Found(document, 1.0)
            assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_texts_are_near_that_share_words() -> None:
    one, other = corpus.embed("rain falls"), corpus.embed("rain falls upon the hills")
    assert corpus.nearness(one, other) >= 2.0
    assert corpus.nearness(one, corpus.embed("")) == 0.0
    assert corpus.rank("rain falls", "the rain") == 0.5
    assert corpus.rank("", "the rain") == 0.0
