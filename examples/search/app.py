"""The handlers. `Finder` is what clients call; it calls the others by `slotmesh.mesh()`."""

from __future__ import annotations

import msgspec

import slotmesh
from examples.search import corpus
from examples.search.corpus import Vector


class Found(msgspec.Struct):
    """A document that answers a query."""

    document: str
    score: float


@slotmesh.deployment(max_ongoing=16)
class Embed:
    """Texts as vectors. Calls that meet become one batch, whoever has made them."""

    @slotmesh.batch(max_batch_size=16)
    async def vector(self, texts: list[str]) -> list[Vector]:
        return [corpus.embed(text) for text in texts]


@slotmesh.deployment(max_ongoing=4)
class Rank:
    """Says how well documents answer a query. It computes, so it is `def`: in threads."""

    def score(self, query: str, document: str) -> float:
        return corpus.rank(query, document)


@slotmesh.deployment(max_ongoing=32)
class Finder:
    """Asks for the vector of a query, finds what is near, and has that ranked."""

    def __init__(self) -> None:
        # Constructors run in a thread: there, as in `def` methods, calls block.
        embed = slotmesh.mesh_sync().endpoint("Embed")
        self._vectors: list[Vector] = embed.vector.map(corpus.DOCUMENTS)

    async def find(self, query: str, count: int) -> list[Found]:
        """The best documents, the best one first."""
        mesh = slotmesh.mesh()
        vector = await mesh.endpoint("Embed").vector(query)
        near = sorted(
            range(len(corpus.DOCUMENTS)), key=lambda each: corpus.nearness(vector, self._vectors[each]), reverse=True
        )
        documents = [corpus.DOCUMENTS[each] for each in near[: 2 * count]]
        # They have what is left of this call's time, and are taken back when it is cancelled.
        scores = await mesh.endpoint("Rank").score.map([query] * len(documents), documents)
        found = [Found(document, score) for document, score in zip(documents, scores, strict=True)]
        return sorted(found, key=lambda each: each.score, reverse=True)[:count]
