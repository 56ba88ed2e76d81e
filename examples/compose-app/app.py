"""Words without their endings, for a search that finds "running" by "run"."""

from __future__ import annotations

import snowballstemmer

import slotmesh


@slotmesh.deployment(max_ongoing=64)
class Words:
    """Knows one language."""

    def __init__(self, language: str = "english") -> None:
        self._stemmer = snowballstemmer.stemmer(language)

    @slotmesh.batch(max_batch_size=64)
    async def stems(self, texts: list[str]) -> list[list[str]]:
        return [self._stemmer.stemWords(text.lower().split()) for text in texts]
