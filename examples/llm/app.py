"""The handlers of the two phases. Prefill has the cache; decode gets the state that prefill has computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec

import slotmesh
from examples.llm import model
from examples.prefill_decode.app import Partner
from examples.prefill_decode.handover import Handover

PREFILL_S = 0.005
"""Of each block that is not cached: 16 tokens, at 3,200 tokens a second."""
DECODE_S = 0.002
"""Of each word."""


class CompletionPiece(msgspec.Struct):
    """What a request streams: first one without a word, when its prompt was read."""

    word: str = ""
    cached: int = 0
    """Blocks of the prompt that were cached."""
    blocks: int = 0
    """All of them."""


@slotmesh.deployment(max_ongoing=8)
class ChatPrefill:
    """Reads prompts, one at a time, as a GPU does."""

    def __init__(self, cache_blocks: int = 1_000) -> None:
        self._cache = model.KvCache(cache_blocks)
        self._gpu = asyncio.Lock()
        self._handover = Handover()

    @slotmesh.prefix_argument("prompt")
    async def complete(self, prompt: str, count: int, partner: Partner | None = None) -> AsyncIterator[CompletionPiece]:
        """The words that follow the prompt: by the partner, or by this replica if there is none."""
        blocks = slotmesh.prefix_blocks(prompt)
        async with self._gpu:
            cached = self._cache.cached(blocks)
            await asyncio.sleep(PREFILL_S * (len(blocks) - cached))
            slotmesh.report_evicted(self._cache.add(blocks))
        yield CompletionPiece(cached=cached, blocks=len(blocks))
        state = model.state_of(prompt)
        words = (
            decode(prompt, state, count)
            if partner is None
            else self._handover.words(partner.address, partner.token, prompt, state, count)
        )
        async with aclosing(words):  # a caller that leaves ends the decode phase, too
            async for word in words:
                yield CompletionPiece(word)


@slotmesh.deployment(max_ongoing=8)
class ChatDecode:
    """Generates words from the state that prefill has computed."""

    async def generate(self, prompt: str, cache: bytes, count: int) -> AsyncIterator[str]:
        """The words, one by one."""
        async for word in decode(prompt, cache, count):
            yield word


async def decode(prompt: str, state: bytes, count: int) -> AsyncGenerator[str, None]:
    """The words, at the speed of the model."""
    for word in model.words_of(prompt, state, count):
        await asyncio.sleep(DECODE_S)
        yield word
