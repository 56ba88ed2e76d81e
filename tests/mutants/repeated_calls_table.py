"""Mutants of calls that are repeated with their request id."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

REPLICA: Final = "replica_service"
_MODEL: Final = "tests/properties/test_repeated_calls.py"
_SHARES: Final = "tests/unit/replica/test_request_memory.py"
_CONTRACT: Final = "tests/contract/replica/test_repeated_calls.py"
_MOVES: Final = "tests/unit/router/routing/test_earlier_owners.py"
_WHOLE: Final = "tests/properties/test_mesh_repeated_calls.py"
_MESH: Final = "tests/contract/mesh/test_repeated_calls.py"

REPEATED_CALLS: Final = (
    mutant(
        "an id of another call gets that call's outcome",
        REPLICA,
        "if known.digest != request.digest:",
        'if known.digest == b"":',
        _MODEL,
    ),
    mutant(
        "a call that was not executed is remembered",
        REPLICA,
        "if failure is not None and failure.executed is Executed.NO:\n            self",
        "if failure is not None and failure.executed is None:\n            self",
        _MODEL,
    ),
    mutant(
        "a dropped outcome makes the id a new one",
        REPLICA,
        "                each.outcome = _EVICTED\n",
        "                each.outcome = None\n",
        _MODEL,
    ),
    mutant(
        "a call with an id ends with its caller",
        REPLICA,
        "return self.request is None or self.options.streaming",
        "return True",
        _CONTRACT,
    ),
    mutant(
        "repetitions of a call that never started wait for ever",
        REPLICA,
        "                self.repetitions.refused(run, failure)\n",
        "                pass\n",
        _CONTRACT,
    ),
    mutant(
        "a router chooses the replica of a call with an id anew each time",
        "router_service/convert",
        "replace(options, request=request, partition=partition_of(request.request_id))",
        "replace(options, request=request)",
        _MESH,
    ),
    mutant(
        "a replica that is not the owner executes a call with an id",
        REPLICA,
        "            if not self._owns(run):\n",
        "            if False:\n",
        _MODEL,
    ),
    mutant(
        "one caller takes all of the memory for ids",
        REPLICA,
        "if free <= 0 or (caller and own >= free):",
        "if free <= 0:",
        _SHARES,
    ),
    mutant(
        "the values of pending calls are not counted",
        REPLICA,
        "        self._hold(known, size)\n\n    def ended",
        "\n    def ended",
        _SHARES,
    ),
    mutant(
        "calls that waited for a move are not asked for",
        "router_service/core",
        "if partition.epoch != before and any(",
        "if partition.epoch == before and any(",
        _MOVES,
    ),
    mutant(
        "an earlier owner is asked again and again",
        "router_service/core",
        " or key in run.options.asked:",
        ":",
        _MOVES,
    ),
    mutant(
        "an earlier owner that cannot be reached counts as one that remembers nothing",
        "router_service/core",
        "if replica is None or replica is partition.owner or",
        "if replica is None or not replica.linked or",
        _MOVES,
    ),
    mutant(
        "two repetitions share a batch",
        "router_service/core",
        "run if run.options.request is not None else None,",
        "run.options.request,",
        _WHOLE,
    ),
    mutant(
        "an owner between two tables is not asked",
        "router_service/core",
        "owners = any_owner if epoch > was + 1 else () if",
        "owners = () if",
        _MOVES,
    ),
    mutant(
        "a move is forgotten before the outcomes of the earlier owner",
        "router_service/core/routing",
        "self._moves.append((now + KEEP_S,",
        "self._moves.append((now,",
        _MOVES,
    ),
)
