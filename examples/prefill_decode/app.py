"""The two handlers. They meet for one request at a time, and only because its caller has reserved both."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

import slotmesh
from examples.prefill_decode import model
from examples.prefill_decode.handover import Handover


class Partner(msgspec.Struct):
    """The decode replica of a request, as its reservation says."""

    address: str
    """Where it serves SlotService, `HOST:PORT`."""
    token: str
    """Of the slot that is reserved there."""


@slotmesh.deployment(max_ongoing=4)
class Prefill:
    """Reads prompts. What comes of it goes straight to the decode replica, by no router."""

    def __init__(self) -> None:
        self._handover = Handover()

    async def complete(self, prompt: str, count: int, partner: Partner) -> AsyncIterator[str]:
        """The words that the partner says after this prompt."""
        cache = model.prefill(prompt)
        async for word in self._handover.words(partner.address, partner.token, prompt, cache, count):
            yield word


@slotmesh.deployment(max_ongoing=4)
class Decode:
    """Speaks, given a cache."""

    async def generate(self, prompt: str, cache: bytes, count: int) -> AsyncIterator[str]:
        """So many words."""
        for word in model.decode(prompt, cache, count):
            yield word
