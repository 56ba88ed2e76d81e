"""Mutants of what a call may rely on: its own context, its own task, its result as returned, its own exception."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

EXECUTORS: Final = "replica_service/shell/executors"
REPLICA: Final = "replica_service/shell"

ISLANDS: Final = (
    mutant(
        "all calls of a run share one context",
        "replica_service/shell/handler",
        "            run = copy_context().run\n",
        "",
        "tests/unit/replica/test_contexts_of_calls.py",
    ),
    mutant(
        "calls share decimal's context with what ran before the replica was started",
        "replica_service/shell/handler",
        "if type(value) is not decimal.Context:",
        "if True:",
        "tests/unit/replica/test_contexts_of_calls.py",
    ),
    mutant(
        "batches in threads share the thread's context",
        EXECUTORS,
        "copy_context().run(self._invoke, left, outcomes)",
        "self._invoke(left, outcomes)",
        "tests/unit/replica/test_contexts_of_calls.py",
    ),
    mutant(
        "calls in threads share the thread's context",
        EXECUTORS,
        "copy_context().run(self._outcome_of, run, index, until)",
        "self._outcome_of(run, index, until)",
        "tests/unit/replica/test_contexts_of_calls.py",
    ),
    mutant(
        "calls are weighed in the engine's context",
        EXECUTORS,
        "return copy_context().run(weigh_here, run, index)",
        "return weigh_here(run, index)",
        "tests/unit/replica/test_contexts_of_calls.py",
    ),
    mutant(
        "a task that a call has kept executes the next work",
        EXECUTORS,
        "(self._now() >= runners.until or marks.are_left)",
        "self._now() >= runners.until",
        "tests/unit/replica/test_tasks_of_calls.py",
    ),
    mutant(
        "a task that a call of a lane has kept executes the next one",
        EXECUTORS,
        "if marks.are_left and index < turn.stop:",
        "if False:",
        "tests/unit/replica/test_tasks_of_calls.py",
    ),
    mutant(
        "a weak reference to a task does not count",
        "replica_service/shell/handler",
        "or getweakrefcount(self.task) != self._weak_references",
        "or False",
        "tests/unit/replica/test_tasks_of_calls.py",
    ),
    mutant(
        "results of calls that follow one another in lanes of one call each are sent as they were read last",
        EXECUTORS,
        "result = encode(value)",
        "result = value if type(value) is bytearray else encode(value)",
        "tests/unit/replica/test_results_as_returned.py",
    ),
    mutant(
        "a failure leaves its traceback on the exception",
        "slotmesh",
        "        _traceback.__set__(each, None)\n",
        "",
        "tests/unit/replica/test_shared_exceptions.py",
    ),
    mutant(
        "a failure leaves what was being handled on the exception",
        "slotmesh",
        "        _context.__set__(each, None)\n",
        "",
        "tests/unit/replica/test_shared_exceptions.py",
    ),
    mutant(
        "trailing metadata of an rpc that has failed gets lost",
        REPLICA,
        "(error.error, error.trailers) if type(error) is RpcRaised",
        '(error.error, b"") if type(error) is RpcRaised',
        "tests/contract/own_protos/test_islands.py",
    ),
)
