"""Mutants of what operators read: what a check concludes, what is paused, who is refused, which code runs."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CLI: Final = "slotmesh/cli"
_CONTROLLER: Final = "controller_service"
_ROUTER: Final = "router_service"
_LOST: Final = "tests/unit/cli/checking/test_lost_members.py"
_PLAIN_TEXT: Final = "tests/unit/cli/checking/test_unreached_security.py"
_LEADER: Final = "tests/unit/cli/test_leader.py"
_SHARES: Final = "tests/unit/router/limits/test_tenant_shares.py"
_WORDS: Final = "tests/contract/controller/test_operator_words.py"

TRUTH: Final = (
    mutant(
        "NaN in JSON arguments arrives as null",
        "slotmesh/convert",
        'case "number_value" if not math.isfinite(wire.number_value):',
        'case "number_value" if False:',
        "tests/unit/wire/test_json_values.py",
    ),
    mutant(
        "a reservation may have any request id",
        "slotmesh/convert",
        "if wire.request_id and (problem := request_id_problem(wire.request_id)):",
        'if wire.request_id and (problem := ""):',
        "tests/contract/router/slots/test_reserve_and_dispatch.py",
    ),
    mutant(
        "an exported state is part of the code",
        _CONTROLLER,
        "return _BEGINS.match(content) is not None",
        "return False",
        "tests/unit/controller/code/test_applied_files.py",
    ),
    mutant(
        "a copied snapshot with other times is no snapshot",
        _CONTROLLER,
        """        return False
    return _has_contents(tree, manifest)""",
        """        return False
    return False""",
        "tests/unit/controller/code/test_damage.py",
    ),
    mutant(
        "a mask that names no field replaces the whole resource",
        _CONTROLLER,
        'if not paths and request.HasField("update_mask"):',
        "if False:",
        "tests/contract/controller/test_changes.py",
    ),
    mutant(
        "a drain is done while the launched process still exits",
        _CONTROLLER,
        "(replica.reaped if replica.launched else replica.gone or replica.state in _ENDED)",
        "replica.gone or replica.state in _ENDED",
        "tests/unit/controller/test_operations.py",
    ),
    mutant(
        "a router that was stopped in order after it had come back counts as lost",
        _CLI,
        "newest = {it.resource: it for it in events}",
        "newest = {it.resource: it for it in events if not is_orderly(it.message)}",
        _LOST,
    ),
    mutant(
        "a suspect replica is forgotten after an hour",
        _CLI,
        'lost.get(it) or LostMember(it, None, "it is silent past its lease") for it in suspect',
        "lost[it] for it in suspect if it in lost",
        _LOST,
    ),
    mutant(
        "members that were not reached count as safe",
        _CLI,
        "for it in exposed if it.problem]",
        "for it in exposed if False]",
        _PLAIN_TEXT,
    ),
    mutant(
        "a leader that does not answer is no leader",
        _CLI,
        "        if leader in addresses:\n            return CommandFailed(",
        "        if leader in addresses:\n            continue\n            return CommandFailed(",
        _LEADER,
    ),
    mutant(
        "a tenant whose share is full reads that the queue is full",
        _ROUTER,
        "if flow is not None and tenant is not None and self._has_room(flow, size):",
        "if False:",
        _SHARES,
    ),
    mutant(
        "a queue that is full is called the share of a tenant",
        _ROUTER,
        "return calls > 0 and size <= room",
        "return True",
        _SHARES,
    ),
    mutant(
        "calls that find no room in a queue do not count as refused",
        _ROUTER,
        "run.tenant.refuse(run.waiting - fits, step.now)",
        "run.tenant.refuse(0, step.now)",
        _SHARES,
    ),
    mutant(
        "a pause is not reported while the rollout is complete",
        _CONTROLLER,
        "paused=record.is_paused,",
        "paused=record.is_paused and not record.is_complete,",
        _WORDS,
    ),
    mutant(
        "a pause is no event",
        _CONTROLLER,
        "            self._state.publish(_notice_of_pause(",
        "            print(_notice_of_pause(",
        _WORDS,
    ),
    mutant(
        "a drain names no operator",
        _CONTROLLER,
        'f"an operator asked for it: {order.who}"',
        '"an operator asked for it"',
        _WORDS,
    ),
    mutant(
        "a controller that starts again does not know the code of the replicas that it finds",
        _CONTROLLER,
        "        fixed=fixed,\n        handler_version=handler_version,\n        pid=pid,",
        "        fixed=fixed,\n        pid=pid,",
        _WORDS,
    ),
    mutant(
        "a backend that should have no replica is never complete",
        _CONTROLLER,
        "present.is_complete or not (wanted or groups.current",
        "present.is_complete and not (wanted or groups.current",
        _WORDS,
    ),
    mutant(
        "what waits for a paused rollout does not report the pause",
        _CONTROLLER,
        "if progress.record.is_paused and old:",
        "if False:",
        "tests/unit/controller/test_operations.py",
    ),
    mutant(
        "calls that were not requested are counted as none",
        _CLI,
        "for count, where in counts if count is not None) + more",
        "for count, where in counts) + more",
        "tests/unit/cli/test_listed_calls.py",
    ),
    mutant(
        "a router that the controller listed is to be named with --address",
        _CLI,
        "        if self.is_listed:\n",
        "        if False:\n",
        "tests/unit/cli/test_unreachable_routers.py",
    ),
    mutant(
        "one of several names that are as near is suggested",
        "slotmesh",
        "if _closeness(word, bare[it]) == closest})[:_MOST_NAMED]",
        "if _closeness(word, bare[it]) == closest})[:1]",
        "tests/unit/cli/test_suggested_names.py",
    ),
    mutant(
        "Ctrl-C prints a traceback while modules are loaded",
        _CLI,
        "    signal.signal(signal.SIGINT, signal.SIG_DFL)\n",
        "    pass\n",
        "tests/unit/cli/test_interrupted_loading.py",
    ),
    mutant(
        "a router that hangs is a warning, as one that has left",
        _CLI,
        "        if HANGS in each.why:\n            severity = Severity.ERROR",
        "        if HANGS in each.why:\n            severity = Severity.WARNING",
        _LOST,
    ),
    mutant(
        "a router in whose place another one is attached counts as lost",
        _CLI,
        "        and not any(is_at(it.address, each.why) for it in members.routers)\n",
        "",
        _LOST,
    ),
    mutant(
        "on hold the configuration of an older state file is compared with what runs",
        _CLI,
        "if not (seen.snapshot.is_on_hold and judge in _OF_CONFIGURATION)",
        "if True",
        "tests/unit/cli/checking/test_findings.py",
    ),
    mutant(
        "a change is ready before its rollout is complete",
        _CONTROLLER,
        "elif facts.launches and progress.phase is not RolloutPhase.COMPLETE:",
        "elif False:",
        "tests/unit/controller/test_operations.py",
    ),
    mutant(
        "members begin anew at each controller that they attach to",
        _CONTROLLER,
        "start_time=timestamp(replica.process_began_s or wall_s(replica.started_at)),",
        "start_time=timestamp(wall_s(replica.started_at)),",
        "tests/contract/controller/test_membership.py",
    ),
    mutant(
        "a backend that keeps its code is said not to start",
        _CONTROLLER,
        "if (found := code.get(key_of(it))) is not None and found.doubt and it.code == found.code",
        "if (found := code.get(key_of(it))) is not None and found.doubt",
        "tests/unit/controller/code/test_names.py",
    ),
    mutant(
        "replicas that have ended are all read",
        _CONTROLLER,
        "left_out = tuple(ended[max_ended:]) if max_ended is not None and name not in self._entries else ()",
        "left_out = ()",
        "tests/unit/controller/test_log_book.py",
    ),
)
