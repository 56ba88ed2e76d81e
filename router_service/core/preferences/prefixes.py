"""Prefix affinity: calls go where the longest beginning of their prompt was sent before.

Callers state the hashes of a prompt's blocks (`CallOptions.prefix_blocks`), or the backend has `affinity: prefix`, and
the argument that a method's decorator names is read from each payload.
Invariants: calls of one run with prompts of their own are placed one by one, so that each goes to its replica. One
event reads at most `EVENT_BLOCKS` blocks, or passes over as much: calls behind them have no prefix, and the balancer
places them. A call that waits for room is read once.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar

from router_service.core.counters import BackendCounts
from router_service.core.limits.capacity import KnownReplica
from router_service.core.preferences.prefix_arguments import MAX_ARGUMENT_BLOCKS, PrefixArgument, blocks_of_argument
from router_service.core.preferences.prefix_table import PrefixTable
from router_service.core.queueing.run_queues import LOOK_AHEAD
from router_service.core.runs import RouterRun
from slotmesh.calls.handler_figures import Evicted
from slotmesh.calls.method_outlines import MethodOutline

CandidateT = TypeVar("CandidateT", bound=KnownReplica)

MAX_BLOCKS: Final = 262_144
"""Blocks of one backend that a router knows unless its settings say otherwise: about 20 MiB."""
EVENT_BLOCKS: Final = 4_096
"""Some milliseconds of work."""
LEFT_FOR_PICKS: Final = EVENT_BLOCKS // 2
"""Of them, those that are not read of calls that wait while a replica chooses one: calls behind them are not chosen."""
MAX_READ: Final = 2 * LOOK_AHEAD
"""Calls whose blocks are kept, so that those that wait are read once."""
NO_ARGUMENTS: Final[Mapping[str, PrefixArgument]] = {}
_NONE: Final[tuple[int, ...]] = ()


def arguments_of(outlines: Iterable[MethodOutline]) -> Mapping[str, PrefixArgument]:
    """The arguments that are prompts, by method as calls name it."""
    return {
        "" if each.method == "__call__" else each.method: PrefixArgument(each.prefix_argument, each.prefix_position - 1)
        for each in outlines
        if each.prefix_argument
    }


class Prompts:
    """What is read of the prompts of one backend's calls."""

    __slots__ = ("_event_at", "_is_read", "_reported", "arguments", "left", "most_blocks")

    def __init__(self, most_blocks: int = MAX_BLOCKS) -> None:
        self.most_blocks = most_blocks
        """Blocks that are known at most."""
        self.arguments = NO_ARGUMENTS
        """The arguments that are read from payloads, by method. Empty if none is."""
        self.left = EVENT_BLOCKS
        """Blocks that the present event may read."""
        self._event_at = 0.0
        self._is_read = False
        self._reported = NO_ARGUMENTS

    def begin(self, now: float) -> None:
        """An event at this time places calls."""
        if now != self._event_at:
            self._event_at, self.left = now, EVENT_BLOCKS

    def read(self, *, is_read: bool) -> None:
        """`is_read`: the backend has `affinity: prefix`."""
        self._is_read = is_read
        self.arguments = self._reported if is_read else NO_ARGUMENTS

    def learn(self, outlines: Iterable[MethodOutline]) -> None:
        """The methods of a replica: those that reported last count."""
        self._reported = arguments_of(outlines)
        self.read(is_read=self._is_read)


class PrefixAffinity(Generic[CandidateT]):
    """The prompts of one backend's calls."""

    def __init__(self, prompts: Prompts, counts: BackendCounts) -> None:
        self._prompts = prompts
        self._counts = counts
        self._table: PrefixTable[CandidateT] = PrefixTable(prompts.most_blocks)
        self._read: dict[tuple[int, int], tuple[int, ...]] = {}
        """The blocks of the calls that were read last, by age of the run and id of the call: those that wait, too."""

    def changed(self, replica: CandidateT) -> None:
        """See `Preference.changed`."""
        self._table.changed(replica)

    def pick(self, run: RouterRun, count: int) -> tuple[CandidateT, int] | None:
        """See `Preference.pick`."""
        if not (blocks := self._blocks_of(run, run.cursor)):
            return None
        options = run.options
        # A prompt that no replica knows goes where the calls of its affinity key go.
        return self._table.pick(blocks, count if options.prefix_blocks else 1, is_known_only=bool(options.affinity_key))

    def suits(self, run: RouterRun, replica: CandidateT) -> bool | None:
        """See `Preference.suits`."""
        blocks = run.options.prefix_blocks
        if not blocks and self._prompts.arguments:
            if self._prompts.left < LEFT_FOR_PICKS and (run.seq, run.ids[run.cursor]) not in self._read:
                return False
            blocks = self._blocks_of(run, run.cursor)
        return self._table.suits(blocks, replica) if blocks else None

    def sent(self, run: RouterRun, count: int, replica: CandidateT) -> None:
        """See `Preference.sent`."""
        if run.partition is not None:
            return
        for at in range(run.cursor - (1 if run.options.prefix_blocks else count), run.cursor):
            if blocks := self._blocks_of(run, at):
                new = self._table.sent(blocks, replica)
                self._counts.new_blocks += new
                self._counts.known_blocks += len(blocks) - new

    def evicted(self, replica: CandidateT, evicted: Evicted) -> None:
        """The replica reports that it holds these blocks no longer, or none."""
        if evicted.is_all:
            self._table.all_evicted(replica)
        self._table.evicted(evicted.blocks, replica)

    def _blocks_of(self, run: RouterRun, at: int) -> tuple[int, ...]:
        """The blocks of a call of the run, by its index."""
        options, read = run.options, self._read
        call = run.seq, run.ids[at]
        if (blocks := read.get(call)) is not None:
            return blocks
        if options.prefix_blocks:
            blocks = options.prefix_blocks[: max(self._prompts.left, 0)]
            work = 1 + len(blocks)
        else:
            argument = self._prompts.arguments.get(options.method) if run.slot is None else None
            if argument is None:
                return _NONE
            most = min(MAX_ARGUMENT_BLOCKS, self._prompts.left)
            blocks, work = blocks_of_argument(run.payloads[at], options.content_type, argument, most)
        self._prompts.left -= work
        if len(read) >= MAX_READ:
            del read[next(iter(read))]
        read[call] = blocks
        return blocks
