"""Conversations with the model: turn by turn, each with a prompt that begins with all turns before it.

Each request reserves a prefill slot and a decode slot, both or none, or leaves all to one call. The ways differ in what
chooses the prefill replica. Every word is checked. A caller that cancels frees both slots.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum

import slotmesh
from examples.llm import model
from examples.llm.app import CompletionPiece
from examples.prefill_decode.app import Partner

SYSTEM = "you are a helpful assistant of a small town library who answers in short sentences and never guesses " * 2
_VOCABULARY = "river sea hill rain road book page lamp door tree bread salt wind bird stone night light snow".split()  # noqa: SIM905 - it is read as a sentence
_READY_S = 20.0


class PrefillWay(StrEnum):
    """How the prefill replica of a request is chosen."""

    LEAST_LOADED = "least_loaded"
    AFFINITY_KEY = "affinity_key"
    """The key is the conversation."""
    PREFIX = "prefix"
    """The reservation has the blocks of the prompt."""
    PREFIX_READ = "prefix, one call"
    """No reservation: the router reads the prompt, and one replica does both phases."""


@dataclass
class ChatTally:
    """What came of the requests of one way."""

    first_word_s: list[float] = field(default_factory=list)
    """From the request, before its reservation, to its first word."""
    cached: int = 0
    blocks: int = 0
    wrong: int = 0
    cancelled: int = 0
    replicas: set[tuple[str, str]] = field(default_factory=set)
    """Endpoint and replica of the reserved slots."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' blocks that were cached."""
        return self.cached / max(1, self.blocks)


@dataclass(frozen=True, slots=True)
class Chats:
    """Conversations of one way."""

    mesh: slotmesh.Mesh
    way: PrefillWay
    tally: ChatTally
    turns: int
    words: int
    think_s: float
    """Mean time between an answer and the next question."""
    is_cancelling: bool = False
    """Each request is cancelled after its first word."""

    async def converse(self, number: int) -> None:
        """One conversation."""
        draws = random.Random(f"{self.way} {number}")
        # Another beginning for each way: none of them finds what another one has left in the caches.
        prompt = f"{self.way}: {SYSTEM}"
        for _ in range(self.turns):
            prompt += " ".join(["\nuser:", *draws.choices(_VOCABULARY, k=60), "\nassistant:"])
            words = await self._request(prompt, number)
            if not self.is_cancelling and words != [*model.words_of(prompt, model.state_of(prompt), self.words)]:
                self.tally.wrong += 1
            prompt = " ".join([prompt, *words])
            await asyncio.sleep(draws.expovariate(1.0) * self.think_s)

    async def _request(self, prompt: str, number: int) -> list[str]:
        tally, began, words = self.tally, time.perf_counter(), list[str]()
        async with aclosing(self._pieces(prompt, f"conversation {number}")) as pieces:
            async for piece in pieces:
                if not piece.word:
                    tally.cached += piece.cached
                    tally.blocks += piece.blocks
                    continue
                if not words:
                    tally.first_word_s.append(time.perf_counter() - began)
                words.append(piece.word)
                if self.is_cancelling:
                    tally.cancelled += 1
                    break
        return words

    async def _pieces(self, prompt: str, conversation: str) -> AsyncGenerator[CompletionPiece, None]:
        """What the request streams. Leaving it cancels the call, which frees the slots of both phases."""
        prefill = self.mesh.endpoint("Prefill")
        if self.way is PrefillWay.PREFIX_READ:
            stream = prefill.method("complete").returning(CompletionPiece).stream(prompt, self.words)
            async with aclosing(stream):
                async for piece in stream:
                    yield piece
            return
        if self.way is PrefillWay.AFFINITY_KEY:
            prefill = prefill.options(affinity_key=conversation)
        elif self.way is PrefillWay.PREFIX:
            prefill = prefill.options(prefix_blocks=slotmesh.prefix_blocks(prompt))
        async with self.mesh.reserve_all(prefill, "Decode") as (first, second):
            self.tally.replicas |= {("Prefill", first.replica_id), ("Decode", second.replica_id)}
            partner = Partner(second.replica_address, second.token)
            words = first.method("complete").returning(CompletionPiece).stream(prompt, self.words, partner)
            async with aclosing(words):
                async for piece in words:
                    yield piece


async def free_slots(mesh: slotmesh.Mesh, replicas: set[tuple[str, str]]) -> bool:
    """Whether nothing runs at these replicas any more: what a reservation there finds beside itself."""
    for endpoint, replica_id in sorted(replicas):
        async with asyncio.timeout(_READY_S):
            while True:
                async with mesh.endpoint(endpoint).reserve(replica_id=replica_id) as slot:
                    if slot.ongoing == 1:
                        break
                await asyncio.sleep(0.05)
    return True
