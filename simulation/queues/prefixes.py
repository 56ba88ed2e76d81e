"""Conversations with caches of prefixes at the replicas: hit rates and queue times by how routers choose replicas.

Each turn of a conversation has a prompt that begins with all turns before it; a call takes as long as the blocks that
its replica's cache lacks. Caches evict what was used longest ago, and report it to routers, as handlers do.
What has to hold: prefix affinity has at least twice the hit rate of the least loaded replica, and a 99th percentile of
queue times that is at most 1.3 times that one's.
Invariants: one seed gives one course of events; the same conversations arrive whatever routers choose by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final

from router_service.core.calls import RouterCallOptions
from router_service.core.events import HandlerStateReported
from simulation.ledger import NotifyingLedger
from simulation.queues.figures import quantile
from simulation.queues.link import QueuesLink
from simulation.queues.wiring import LINK_DELAY, WiredMesh, WiredSettings, stream
from slotmesh.calls.handler_figures import Evicted

LEAST_HITS: Final = 2.0
LARGEST_RATIO: Final = 1.3
LEAST_P99: Final = 0.04
"""Mean service times. Smaller quantiles count as this: it is the way to a replica and back."""
_SYSTEM_PROMPTS, _SYSTEM_BLOCKS = 20, 8
_TURNS, _QUESTION, _ANSWER = (4, 10), (2, 12), 8
"""Turns of a conversation, and blocks of each; the answer is part of the next prompt."""
_FIXED: Final = 0.3
"""Share of the time of a call without a hit that does not depend on its prompt."""


class PrefixChoice(StrEnum):
    """What routers choose replicas by."""

    LEAST_LOADED = "least_loaded"
    AFFINITY_KEY = "affinity_key"
    """The conversation."""
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSettings(WiredSettings):
    """One configuration. Times in mean service times of calls without a hit."""

    chosen: PrefixChoice = PrefixChoice.PREFIX
    conversations: int = 2_000
    replicas: int = 8
    slots: int = 8
    cache: float = 0.05
    """Blocks in the cache of one replica, as a share of all blocks."""
    load: float = 0.95
    """The load if nothing were cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixFigures:
    """What came of it."""

    settings: PrefixSettings
    calls: int
    hits: float
    """Share of the prompts' blocks that were cached."""
    p50: float
    p99: float
    """Queue times."""
    service: float
    """Mean service time."""
    busiest: float
    """Calls of the replica with most of them, as a multiple of the mean."""


@dataclass(frozen=True, slots=True)
class _Conversation:
    blocks: tuple[int, ...]
    lengths: tuple[int, ...]
    """Blocks of the prompt of each turn."""
    router: int


def _conversations(settings: PrefixSettings, draws: Random) -> list[_Conversation]:
    found: list[_Conversation] = []
    for number in range(1, settings.conversations + 1):
        prompt = draws.randrange(_SYSTEM_PROMPTS)
        blocks = [prompt * _SYSTEM_BLOCKS + at for at in range(_SYSTEM_BLOCKS)]
        lengths: list[int] = []
        for turn in range(draws.randint(*_TURNS)):
            more = draws.randint(*_QUESTION) + (_ANSWER if turn else 0)
            blocks += [number << 32 | len(blocks) + at for at in range(more)]
            lengths.append(len(blocks))
        found.append(_Conversation(tuple(blocks), tuple(lengths), number % settings.routers))
    return found


class _Cache:
    """The blocks that one replica holds; what was used longest ago leaves first, the end of a prefix before it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, blocks: Sequence[int]) -> tuple[int, list[int]]:
        """Returns how many blocks of the beginning were there, and what was evicted for the others."""
        held = self._blocks
        known = next((at for at, block in enumerate(blocks) if block not in held), len(blocks))
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        return known, [held.popitem(last=False)[0] for _ in range(len(held) - self._size)]


class PrefixMesh:
    """One simulation."""

    def __init__(self, settings: PrefixSettings) -> None:
        self._settings = settings
        self._conversations = _conversations(settings, stream(settings.seed, "conversations"))
        self._of_call: list[tuple[int, int]] = []
        """Conversation and turn of each call, by its number."""
        self._thinking, self._services = stream(settings.seed, "thinking"), stream(settings.seed, "services")
        blocks = len({block for each in self._conversations for block in each.blocks})
        prompts = [length for each in self._conversations for length in each.lengths]
        self._per_block = (1.0 - _FIXED) * len(prompts) / sum(prompts)
        self._duration = len(prompts) / (settings.load * settings.replicas * settings.slots)
        self._caches = [_Cache(int(settings.cache * blocks)) for _ in range(settings.replicas)]
        self._known = self._all = 0
        self._service = 0.0
        self._calls_of = [0] * settings.replicas
        ledger = NotifyingLedger(settings.slots * settings.replicas, self._settled)
        self._mesh = WiredMesh(settings, self._serve, ledger)
        self._kernel, self._ledger = self._mesh.kernel, ledger

    def run(self) -> PrefixFigures:
        """Until each call has its outcome.

        Raises:
            Violation: a core broke a promise.
        """
        starts, kernel, ledger = stream(self._settings.seed, "starts"), self._kernel, self._ledger
        for number in range(len(self._conversations)):
            kernel.at(starts.random() * self._duration, self._arrive, (number, 0))
        kernel.run(lambda: False)
        ledger.check()
        times, calls = sorted(ledger.waited), len(ledger.waited)
        return PrefixFigures(
            settings=self._settings,
            calls=calls - ledger.failed,
            hits=self._known / self._all,
            p50=quantile(times, 0.5),
            p99=quantile(times, 0.99),
            service=self._service / calls,
            busiest=max(self._calls_of) * len(self._calls_of) / calls,
        )

    def _arrive(self, turn: tuple[int, int]) -> None:
        number, at = turn
        conversation = self._conversations[number]
        match self._settings.chosen:
            case PrefixChoice.PREFIX:
                options = RouterCallOptions(prefix_blocks=conversation.blocks[: conversation.lengths[at]])
            case PrefixChoice.AFFINITY_KEY:
                options = RouterCallOptions(affinity_key=f"conversation {number}")
            case _:
                options = RouterCallOptions()
        self._of_call.append(turn)
        self._mesh.call(conversation.router, options)

    def _serve(self, replica: int, call: int) -> float:
        """The time of a call that starts at the replica."""
        number, at = self._of_call[call]
        conversation = self._conversations[number]
        blocks = conversation.blocks[: conversation.lengths[at]]
        known, evicted = self._caches[replica].use(blocks)
        if evicted and self._settings.chosen is PrefixChoice.PREFIX:
            for link in self._mesh.links[replica]:
                self._kernel.at(self._kernel.now + LINK_DELAY, self._report, (link, tuple(evicted)))
        self._calls_of[replica] += 1
        self._known += known
        self._all += len(blocks)
        service = (_FIXED + self._per_block * (len(blocks) - known)) * self._services.expovariate(1.0)
        self._service += service
        return service

    def _report(self, evicted: tuple[QueuesLink, tuple[int, ...]]) -> None:
        link, blocks = evicted
        link.router.core.step(HandlerStateReported(link.far, {}, None, Evicted(blocks)), self._kernel.now)

    def _settled(self, call: int) -> None:
        number, at = self._of_call[call]
        if at + 1 < len(self._conversations[number].lengths):
            think = self._thinking.expovariate(2.0 * sum(_TURNS) / self._duration)
            self._kernel.at(self._kernel.now + think, self._arrive, (number, at + 1))


@dataclass(frozen=True, slots=True)
class PrefixComparison:
    """The same conversations, by what routers choose by."""

    figures: dict[PrefixChoice, PrefixFigures]

    @property
    def hits(self) -> float:
        """Hit rate of prefix affinity, as a multiple of that of the least loaded replica."""
        return self.figures[PrefixChoice.PREFIX].hits / self.figures[PrefixChoice.LEAST_LOADED].hits

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles of their queue times."""
        prefix, least = (
            max(LEAST_P99, self.figures[each].p99) for each in (PrefixChoice.PREFIX, PrefixChoice.LEAST_LOADED)
        )
        return prefix / least

    @property
    def is_as_expected(self) -> bool:
        """Whether what has to hold does."""
        return self.hits >= LEAST_HITS and self.ratio <= LARGEST_RATIO


def compare(settings: PrefixSettings) -> PrefixComparison:
    """Simulates each of them."""
    return PrefixComparison({chosen: PrefixMesh(replace(settings, chosen=chosen)).run() for chosen in PrefixChoice})


def settings(*, is_quick: bool) -> list[PrefixSettings]:
    """What is compared."""
    if is_quick:
        return [PrefixSettings(conversations=400)]
    return [
        PrefixSettings(load=load, routers=routers)
        for load, routers in ((0.5, 1), (0.95, 1), (0.95, 4), (1.2, 1), (1.8, 1))
    ]


def table(compared: Sequence[PrefixComparison]) -> str:
    """A line for each mesh and what its routers choose by."""
    first = compared[0].figures[PrefixChoice.PREFIX].settings
    conditions = (
        f"{first.conversations:,} conversations, {first.replicas} replicas with {first.slots} slots, caches of "
        f"{first.cache:.0%} of all blocks. Load and times: if nothing were cached."
    )
    lines = [conditions, "load  routers  chosen by     hit rate  service  queue p50     p99  busiest"]
    for each in compared:
        for chosen, figures in each.figures.items():
            is_prefix = chosen is PrefixChoice.PREFIX
            verdict = f"   hits × {each.hits:.2f}, p99 × {each.ratio:.2f} {'✓' if each.is_as_expected else '✗'}"
            lines.append(
                f"{figures.settings.load:4.0%}  {figures.settings.routers:7}  {chosen:<12}  {figures.hits:8.1%}  "
                f"{figures.service:7.3f}  {figures.p50:9.3f}  {figures.p99:6.3f}  {figures.busiest:7.2f}"
                f"{verdict if is_prefix else ''}"
            )
    return "\n".join(lines)
