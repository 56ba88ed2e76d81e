"""Mutants of prefix affinity: what is known of prompts, where they go, and what is read of payloads."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

PREFERENCES: Final = "router_service/core/preferences"
TABLE: Final = "tests/unit/router/preferences/test_prefix_table.py"
WHOLE: Final = "tests/unit/router/preferences/test_prefixes.py"
ARGUMENTS: Final = "tests/unit/router/preferences/test_prefix_arguments.py"
REPORTING: Final = "tests/unit/handlers/test_reporting.py"

PREFIXES: Final = (
    mutant(
        "an overloaded replica gets all calls of its prefixes",
        PREFERENCES,
        "max(share, (permits + 1) // 2) - holder.load)",
        "permits - holder.load)",
        TABLE,
    ),
    mutant(
        "conversations that share their beginning stay at one replica",
        PREFERENCES,
        "return new * weight + holder.load * self._new_blocks",
        "return new + holder.load * self._new_blocks",
        TABLE,
    ),
    mutant(
        "what a replica has evicted is still known",
        PREFERENCES,
        "table[block] = held & ~holder.bit",
        "table[block] = held",
        TABLE,
    ),
    mutant(
        "blocks of a replica that left belong to the one with its number",
        PREFERENCES,
        "self._gone, self._gone_before = [], self._gone",
        "self._unused, self._gone, self._gone_before = [*self._unused, *self._gone], [], []",
        TABLE,
    ),
    mutant(
        "a caller with random prompts empties the table",
        PREFERENCES,
        "                once[block] = bit\n",
        "                again[block] = bit\n",
        TABLE,
    ),
    mutant(
        "blocks that are used again make the table grow",
        PREFERENCES,
        "if 2 * len(self._once) >= left or len(self) > most:",
        "if 2 * len(self._once) >= left:",
        TABLE,
    ),
    mutant(
        "a block that was used longest ago is forgotten although it is used again",
        PREFERENCES,
        "held = once.pop(block, 0) or again_before.pop(block, 0) or once_before.pop(block, 0)",
        "held = once.pop(block, 0) or once_before.pop(block, 0)",
        TABLE,
    ),
    mutant(
        "a replica that reports that it has lost all keeps its blocks",
        PREFERENCES,
        "if evicted.is_all:",
        "if not evicted:",
        WHOLE,
    ),
    mutant(
        "calls of one frame go where the prompt of the first one was",
        PREFERENCES,
        "count if options.prefix_blocks else 1",
        "count",
        WHOLE,
    ),
    mutant(
        "a prompt goes before the affinity key although no replica knows it",
        PREFERENCES,
        "is_known_only=bool(options.affinity_key)",
        "is_known_only=False",
        WHOLE,
    ),
    mutant(
        "an argument that has a name only is looked for at the end of the positional ones",
        PREFERENCES,
        "if not 0 <= argument.position < values:",
        "if argument.position >= values:",
        ARGUMENTS,
    ),
    mutant(
        "evicted blocks that were dropped before they were sent are not reported",
        "slotmesh/handlers",
        "is_all=new > kept",
        "is_all=False",
        REPORTING,
    ),
)
