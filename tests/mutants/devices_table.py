"""Mutants of devices: who holds them, whether all fit, and how rollouts go on without a spare one."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

MODEL: Final = "tests/properties/test_devices.py"
MESH: Final = "tests/contract/controller/test_devices.py"
LAUNCHER: Final = "tests/contract/controller/test_launched_devices.py"
CORE: Final = "controller_service/core"
SHELL: Final = "controller_service/shell"

DEVICES: Final = (
    mutant(
        "a whole device is given to a replica while another one has a share of it",
        CORE,
        "free = [it for it in names if not used.get((pool, it))][",
        "free = [it for it in names if used.get((pool, it), 0) < WHOLE][",
        MODEL,
    ),
    mutant(
        "shares are spread over free devices",
        CORE,
        "fullest = max(fitting,",
        "fullest = min(fitting,",
        MODEL,
    ),
    mutant(
        "shares take the devices that whole ones were promised",
        CORE,
        "limits[pool] = len(names) - whole",
        "limits[pool] = len(names)",
        MODEL,
    ),
    mutant(
        "shares that sum to a pool's size are accepted though they do not fit into devices",
        CORE,
        "count = min(counts[amount], room // amount)",
        "count = counts[amount]",
        MODEL,
    ),
    mutant(
        "a pool that is short already refuses changes that want no more of it",
        CORE,
        "is_new = wanted > wanted_before or",
        "is_new = True or",
        MESH,
    ),
    mutant(
        "processes of another controller's directory hold no devices",
        SHELL,
        "held |= {name: stranger.devices for name, stranger in self._strangers.items()}",
        "pass",
        LAUNCHER,
    ),
    mutant(
        "the end of a replica is reported while a process that it has started may use its device",
        SHELL,
        "while any(_members(group)) and",
        "while False and",
        "tests/contract/controller/test_launched_processes.py",
    ),
    mutant(
        "what a replica has left behind while no controller ran uses its device beside the next holder",
        SHELL,
        "    end_left_behind(process, self._directory.log_of(record.replica_id))",
        "    pass",
        "tests/contract/controller/test_launched_processes.py",
    ),
    mutant(
        "a group that has got the id of an ended replica's is killed",
        SHELL,
        "any(_writes(it, output) for it in _members(group))",
        "any(_members(group))",
        "tests/contract/controller/test_launched_processes.py",
    ),
    mutant(
        "what still runs is forgotten where processes have no descriptors, and its devices are given to another",
        SHELL,
        "        if process_of(pid) == process and not has_ended(process):",
        "        if pidfd != NO_DESCRIPTOR and process_of(pid) == process and not has_ended(process):",
        "tests/contract/controller/test_launched_processes.py",
    ),
    mutant(
        "replicas see the devices that they do not hold",
        SHELL,
        "held: dict[str, list[str]] = {pool: [] for pool in self._pools}",
        "held: dict[str, list[str]] = {it.pool: [] for it in read_devices(order.devices)}",
        LAUNCHER,
    ),
    mutant(
        "a start that waits for a device is not tried when one is free",
        SHELL,
        "for name in self.deferred_starts:",
        "for name in ():",
        "tests/unit/controller/test_shell_parts.py",
    ),
    mutant(
        "a rollout without a spare device waits for one for ever",
        CORE,
        "return surge, unavailable or (0 if surge else 1)",
        "return surge, unavailable",
        "tests/properties/test_controller_rollouts.py",
    ),
    mutant(
        "a rollout without a spare device tries to start a replica first",
        CORE,
        "surge = min(surge, max(0, staying + room - wanted))",
        "pass",
        "tests/properties/test_controller_rollouts.py",
    ),
    mutant(
        "a replica makes way for one that cannot be started",
        CORE,
        "are_ahead=bool(leaving) and left < wanted and not is_replaced,",
        "are_ahead=False,",
        "tests/properties/test_controller_rollouts.py",
    ),
    mutant(
        "a rollout frees high ranks first, so that some stay beyond the number for ever",
        CORE,
        "return not replica.is_unhealthy, rank, replica",
        "return not replica.is_unhealthy, -rank, replica",
        "tests/properties/test_controller_rollouts.py",
    ),
    mutant(
        "a replica makes way before it is known whether the next one can be started",
        SHELL,
        "if await self._launching.can_start(backend):",
        "if await self._launching.can_start(backend) or True:",
        MESH,
    ),
    mutant(
        "a replica makes way for one that would find no device even then",
        SHELL,
        "if left.choose(backend.devices) is None:",
        "if False:",
        MESH,
    ),
    mutant(
        "a replica makes way although an operator wants it again",
        SHELL,
        "actions = self._outcome(backend.name, self._store.read()).actions",
        "actions = [action]",
        MESH,
    ),
    mutant(
        "a start uses a secret that was read before the old replica made way",
        SHELL,
        "        del self._of[backend]\n        return task.result()",
        "        return task.result()",
        "tests/contract/controller/test_bad_process_settings.py",
    ),
)
