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

_KEYS: Final = "tests/contract/ingress/test_idempotency_keys.py"
_CLIENT: Final = "tests/contract/mesh/test_request_ids.py"

REPEATED_CALLS: Final = (
    mutant(
        "an rpc of own protos that is repeated for another model gets the result of the first one's",
        "slotmesh/server",
        'kind = f"own for {model_id}" if model_id else "own"',
        'kind = "own"',
        "tests/contract/own_protos/test_request_ids.py",
    ),
    mutant(
        "a key without a tenant finds the outcome of a tenant's call",
        "ingress_service/core",
        "if not terms.tenant and not terms.request_id.startswith(_OF_TENANT):",
        "if not terms.tenant:",
        _KEYS,
    ),
    mutant(
        "a client repeats a call that has no id",
        "slotmesh/client",
        "NEVER: Final = -inf",
        "NEVER: Final = inf",
        _CLIENT,
    ),
    mutant(
        "a client does not repeat a call with an id",
        "slotmesh/client",
        "until = inf if timeout_s is None else now() + timeout_s",
        "until = NEVER",
        _CLIENT,
    ),
    mutant(
        "a refused repetition proves that the first attempt was not executed",
        "slotmesh/client",
        "return lost or unreached",
        "return unreached",
        _CLIENT,
    ),
    mutant(
        "a repetition gets the mark of another HTTP front",
        REPLICA,
        "            return Decision(CallVerdict.DELIVER, known.outcome.for_mark(run.options.http))",
        "            return Decision(CallVerdict.DELIVER, known.outcome)",
        _MODEL,
    ),
    mutant(
        "idempotency keys of tenants are one",
        "ingress_service",
        "    if not terms.tenant and not terms.request_id.startswith(_OF_TENANT):\n        return terms\n",
        "    return terms\n",
        _KEYS,
    ),
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
        "an ordering key is the lane of an id",
        REPLICA,
        "return self.endpoint, self.request.caller, self.request.request_id",
        "return self.endpoint, self.request.request_id",
        _CONTRACT,
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
        "calls that waited for a move are not looked up",
        "router_service/core",
        "if partition.epoch != before and any(",
        "if partition.epoch == before and any(",
        _MOVES,
    ),
    mutant(
        "an owner that has owned again is not queried again",
        "router_service/core",
        "run.looked_up.get(key) != epoch",
        "key not in run.looked_up",
        _MOVES,
    ),
    mutant(
        "an earlier owner that cannot be reached counts as one that remembers nothing",
        "router_service/core",
        "if replica is not None and replica is not partition.owner and",
        "if replica is not None and replica.linked and replica is not partition.owner and",
        _MOVES,
    ),
    mutant(
        "calls wait for an earlier owner that has ended",
        "router_service/core",
        "if not (each.listed or each.linked)]",
        "if each.retired]",
        _MOVES,
    ),
    mutant(
        "a timeout during a wait for an earlier owner proves that nothing was executed",
        "router_service/core",
        "failure = unknown if type(each) is LookUp else unsent",
        "failure = unsent",
        _MOVES,
    ),
    mutant(
        "a caller that leaves during a wait for an earlier owner counts as a failure of the mesh",
        "router_service/core",
        "unknown = failures.CANCELLED_AT_REPLICA",
        "pass",
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
        "what a router cancels as it stops is not repeated",
        "slotmesh/client",
        "if failure.reason is Reason.CANCELLED and not has_details(error):",
        "if False:",
        _CLIENT,
    ),
    mutant(
        "a call of another model is a repetition",
        "slotmesh/server",
        "if options.model_id:  # another model",
        "if False:  # another model",
        _KEYS,
    ),
    mutant(
        "an owner between two tables is not queried",
        "router_service/core",
        "if former.is_followed_by_gap or epoch < newer - 1:",
        "if former.is_followed_by_gap:",
        _MOVES,
    ),
    mutant(
        "a move is forgotten before the outcomes of the earlier owner",
        "router_service/core/routing",
        "formers[-1].until = now",
        "formers[-1].until = formers[-1].since",
        _MOVES,
    ),
    mutant(
        "a call that was looked up waits behind younger ones",
        "router_service/core/lifecycle",
        "partition.queue.insert(run)",
        "partition.queue.append(run)",
        _MOVES,
    ),
    mutant(
        "calls behind a look-up wait for ever",
        "router_service/core",
        "if type(sent) is LookUp and isinstance(order, Partition):",
        "if isinstance(order, Partition) and order.inflight == -1:",
        _MOVES,
    ),
    mutant(
        "a call passes an older one of its key that is looked up",
        "router_service/core",
        "return lane is not None and _place(lane[0]) < _place(run)",
        "return lane is not None and _place(lane[0]) > _place(run)",
        _MOVES,
    ),
    mutant(
        "a look-up that got no response counts as one that found nothing",
        "router_service/core",
        "for each, epoch in run.looked_up.items() if each != key",
        "for each, epoch in run.looked_up.items()",
        _MOVES,
    ),
    mutant(
        "a router keeps repetitions until their partition has left an owner that drains",
        "router_service",
        "if owner is not None and owner.draining and owner.linked and",
        "if owner is not None and owner.draining and False and",
        _MOVES,
    ),
    mutant(
        "a call that an owner which drains did not know is not looked up there after the move",
        "router_service",
        "return owner, NOT_OWNED",
        "return owner, partition.epoch",
        _MOVES,
    ),
    mutant(
        "calls that wait for an owner are not looked up when it begins to drain",
        "router_service",
        "if partition.owner is replica and any(run.options.request is not None for",
        "if partition.owner is None and any(run.options.request is not None for",
        _MOVES,
    ),
)
