"""Mutants of five kinds in the controller, security, the specification and the commands.

The kinds are those of CONTRIBUTING.md ("Tests"): the second of several, exact edges, identity by part, the side path,
tautology.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

CONTROLLER: Final = "controller_service"
SECURITY: Final = "slotmesh/security"
SPEC: Final = "slotmesh/spec"
CLI: Final = "slotmesh/cli"

_SEVERAL: Final = (
    mutant(
        "a shift steps though its second rising backend has no ready replica",
        CONTROLLER,
        "if lacking := [it for it in shift.rising if it not in look.ready]:",
        "if lacking := [it for it in shift.rising[:1] if it not in look.ready]:",
        "tests/properties/test_controller_shifts.py",
    ),
    mutant(
        "one router alone says that no call was made",
        CONTROLLER,
        "        for router in routers.values():\n            if router.reported_at is None",
        "        for router in [*routers.values()][:1]:\n            if router.reported_at is None",
        "tests/properties/test_controller_shifts.py",
    ),
    mutant(
        "of a change of several resources only the last one counts towards the size",
        CONTROLLER,
        "total += size - before",
        "total = self._total + size - before",
        "tests/unit/controller/test_bounds.py",
    ),
    mutant(
        "an earlier incarnation that counts as ended takes the later one with it",
        CONTROLLER,
        "if link is not None and link.hello.incarnation == owner.incarnation:\n            link.stream.end",
        "if link is not None:\n            link.stream.end",
        "tests/contract/controller/test_forgetting.py",
    ),
    mutant(
        "a replica to which the second router has a link is forgotten",
        CONTROLLER,
        "    for router in observed.routers.values():\n        if replica.owner in router.linked:",
        "    for router in [*observed.routers.values()][:1]:\n        if replica.owner in router.linked:",
        "tests/unit/controller/test_forgetting.py",
    ),
    mutant(
        "only one owner is ordered to give up partitions",
        CONTROLLER,
        "for owner, epochs in ownership.leaving_by_owner().items():\n            link",
        "for owner, epochs in [*ownership.leaving_by_owner().items()][:1]:\n            link",
        "tests/contract/controller/test_orders_to_several.py",
    ),
    mutant(
        "of several lists of revoked certificates the first one says when a newer one is due",
        SECURITY,
        "min(ends, default=None)",
        "(ends[0] if ends else None)",
        "tests/unit/security/test_identity_by_part.py",
    ),
    mutant(
        "a replica counts as linked if one of several routers has a link",
        CLI,
        "not any(members.unlinked(it,",
        "not all(members.unlinked(it,",
        "tests/unit/cli/checking/test_one_of_several.py",
    ),
    mutant(
        "a revoked certificate between authority and leaf still vouches",
        SECURITY,
        "if any(map(self.revocations.names, chain)):",
        "if any(map(self.revocations.names, chain[:1])):",
        "tests/unit/security/test_identity_by_part.py",
    ),
)

_EDGES: Final = (
    mutant(
        "a holder with exactly its share is refused",
        "slotmesh/calls",
        "held > self.share and held - amount > own",
        "held >= self.share and held - amount > own",
        "tests/unit/security/test_bounds.py",
    ),
    mutant(
        "the last saved-up change of a caller is refused",
        SECURITY,
        "if left < 1:\n",
        "if left <= 1:\n",
        "tests/unit/security/test_bounds.py",
    ),
    mutant(
        "exactly as many backends as there may be are refused",
        CONTROLLER,
        "if count > max(most, len(there)):",
        "if count >= max(most, len(there)):",
        "tests/unit/controller/test_bounds.py",
    ),
    mutant(
        "a configuration is nested one deeper than the bound",
        SPEC,
        "case _ if depth == MAX_CONFIG_DEPTH:",
        "case _ if depth > MAX_CONFIG_DEPTH:",
        "tests/unit/spec/test_bounds.py",
    ),
    mutant(
        "a secret file of exactly the bound is refused",
        SECURITY,
        'if len(content) > MAX_BYTES:\n        raise UnusableFile(f"{path}: the {what} is larger',
        'if len(content) >= MAX_BYTES:\n        raise UnusableFile(f"{path}: the {what} is larger',
        "tests/unit/security/test_bounds.py",
    ),
    mutant(
        "a router's table of exactly the bound is refused",
        CONTROLLER,
        "if account.size + size > bounds.table_bytes:",
        "if account.size + size >= bounds.table_bytes:",
        "tests/contract/controller/test_side_paths.py",
    ),
    mutant(
        "the last revision of a term and the first one of the next are taken for one",
        CONTROLLER,
        "terms[number + 1].first_revision - 1)",
        "terms[number + 1].first_revision)",
        "tests/unit/controller/test_lineage.py tests/unit/controller/test_identity_by_part.py",
    ),
)

_IDENTITY: Final = (
    mutant(
        "an earlier incarnation's word fences the present one",
        CONTROLLER,
        "if known is None or known.incarnation != owner.incarnation or through_epoch <= known.fenced_through:",
        "if known is None or through_epoch <= known.fenced_through:",
        "tests/unit/controller/test_identity_by_part.py",
    ),
    mutant(
        "an earlier incarnation's report counts for the present one",
        CONTROLLER,
        "if known is None or known.incarnation != incarnation:",
        "if known is None:",
        "tests/unit/controller/test_identity_by_part.py",
    ),
    mutant(
        "a state file at another revision of the same term is written to",
        CONTROLLER,
        '" WHERE id = 1 AND generation = ? AND term = ? AND revision = ?"',
        '" WHERE id = 1 AND generation = ? AND term = ? AND revision >= 0 * ?"',
        "tests/contract/controller/test_state_fence.py",
    ),
    mutant(
        "a process of another backend is taken for the launched child of that id",
        CONTROLLER,
        "known.launched and not known.incarnation and known.backend == hello.backend and not is_other",
        "known.launched and not known.incarnation and not is_other",
        "tests/unit/controller/test_identity_by_part.py",
    ),
    mutant(
        "a cursor of another feed names a place in this one",
        CONTROLLER,
        "numbers = [event.number for event in self._events if event.feed == feed]",
        "numbers = [event.number for event in self._events]",
        "tests/unit/controller/test_identity_by_part.py",
    ),
    mutant(
        "totals of another start of a router go on from those of the earlier start",
        CONTROLLER,
        "goes_on = now.run_id == before.run_id and now.sent >= before.sent",
        "goes_on = now.sent >= before.sent",
        "tests/unit/controller/test_identity_by_part.py",
    ),
    mutant(
        "a token that was accepted goes on though it now stands for another identity",
        SECURITY,
        "found is not None and found.revoked_at is None and found.identity == accepted.identity",
        "found is not None and found.revoked_at is None",
        "tests/unit/security/test_identity_by_part.py",
    ),
    mutant(
        "a certificate shown with another chain is judged by the chain it came with first",
        SECURITY,
        "key = pem if not between else pem + between[0]",
        "key = pem",
        "tests/unit/security/test_identity_by_part.py",
    ),
)

_SIDE_PATHS: Final = (
    mutant(
        "a table that was refused or too late is counted for ever",
        CONTROLLER,
        "        finally:\n            self._reading -= account.size",
        "        else:\n            self._reading -= account.size",
        "tests/contract/controller/test_side_paths.py",
    ),
    mutant(
        "a watcher of events whose task was cancelled stays",
        CONTROLLER,
        "        try:\n            yield watcher\n        finally:\n            self._watchers.discard(watcher)",
        "        yield watcher\n        self._watchers.discard(watcher)",
        "tests/contract/controller/test_side_paths.py",
    ),
    mutant(
        "what a rate has refused is charged as well",
        SECURITY,
        "if left < 1:\n            self.refused += 1",
        "if left < 1:\n            self._left[who] = left - 1, now\n            self.refused += 1",
        "tests/unit/security/test_quotas.py",
    ),
    mutant(
        "a process that could not be started leaves its launch record",
        CONTROLLER,
        '            self._directory.remove(replica_id)\n            raise LaunchFailed(f"cannot start',
        '            raise LaunchFailed(f"cannot start',
        "tests/contract/controller/test_failed_launches.py",
    ),
    mutant(
        "a router's stream that has ended is woken for ever",
        CONTROLLER,
        "            self._board.ignore(stream.wake)\n",
        "            pass\n",
        "tests/contract/controller/test_side_paths.py",
    ),
    mutant(
        "a change that changes nothing takes a revision",
        CONTROLLER,
        "if terms.validate_only or (plan.changes_nothing and signed.answer is None):",
        "if terms.validate_only:",
        "tests/contract/controller/test_side_paths.py",
    ),
)

_TAUTOLOGY: Final = (
    mutant(
        "the list of what serves is for invokers",
        SECURITY,
        '(_HEALTH, "List"): Rule(f"{_HEALTH}/List", (Role.VIEWER,)),',
        '(_HEALTH, "List"): Rule(f"{_HEALTH}/List", (Role.VIEWER, Role.INVOKER)),',
        "tests/unit/security/test_rules.py",
    ),
)

NET_CONTROL: Final = (*_SEVERAL, *_EDGES, *_IDENTITY, *_SIDE_PATHS, *_TAUTOLOGY)
