"""Mutants of how clients and local meshes end."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

_CLOSING: Final = (
    mutant(
        "closing a client waits for calls that were cancelled",
        "slotmesh/client/stream",
        "if not connection.has_wanted:",
        "if False:",
        "tests/contract/client/test_close.py",
    ),
    mutant(
        "closing a client takes a map that was cancelled for wanted",
        "slotmesh/client/calls",
        "return bool(self) and not self.gather.done()",
        "return bool(self)",
        "tests/contract/client/test_close_after_cancel.py",
    ),
    mutant(
        "closing a client waits for cancelled calls that were sent",
        "slotmesh/client/stream",
        "return any(part.has_wanted for part in self._sent.values())",
        "return self.calls > 0",
        "tests/contract/client/test_close_after_cancel.py",
    ),
    mutant(
        "closing a client drops calls that wait beside cancelled ones",
        "slotmesh/client/stream",
        "if not self._outbox.has_wanted:",
        "if True:",
        "tests/contract/client/test_close_after_cancel.py tests/contract/client/test_close.py",
    ),
)

_STOPPING: Final = (
    mutant(
        "`run` keeps its routers until the ingress has ended",
        "slotmesh/cli/local",
        "await _all_ended([ingress], HEAD_START_S)",
        "await _all_ended([ingress], 3600)",
        "tests/unit/cli/test_stopping.py",
    ),
    mutant(
        "`run` ends its controller beside the routers",
        "slotmesh/cli/local",
        "await _all_ended(fronts, self._left_s + SLACK_S)",
        "pass",
        "tests/unit/cli/test_stopping.py",
    ),
    mutant(
        "a second Ctrl-C does nothing",
        "slotmesh/cli/local",
        "if loop.time() - began >= SAME_INTERRUPT_S:",
        "if False:",
        "tests/unit/cli/test_stopping.py",
    ),
    mutant(
        "Ctrl-C that reaches `run` twice kills",
        "slotmesh/cli/local",
        "if loop.time() - began >= SAME_INTERRUPT_S:",
        "if True:",
        "tests/unit/cli/test_stopping.py",
    ),
    mutant(
        "replicas live on when the controller is killed",
        "slotmesh/cli/local",
        "if late and process and not has_ended(process):",
        "if False:",
        "tests/e2e/test_cli_run_stop.py",
    ),
)

_FILES_AND_PROCESSES: Final = (
    mutant(
        "keys that a merge key brings count as given twice",
        "slotmesh/spec",
        'if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":',
        "if isinstance(key, yaml.ScalarNode):",
        "tests/unit/spec/test_yaml.py",
    ),
    mutant(
        "`no` in a mesh file is warned of nowhere",
        "slotmesh/spec",
        "if pattern is not None and node.style is None and pattern.fullmatch(node.value):",
        "if False:",
        "tests/unit/spec/test_yaml.py",
    ),
    mutant(
        "a quoted text of a mesh file is warned of",
        "slotmesh/spec",
        "if pattern is not None and node.style is None and pattern.fullmatch(node.value):",
        'if re.fullmatch("no|0644", node.value):',
        "tests/unit/spec/test_yaml.py",
    ),
    mutant(
        "a Backend of a test takes any value",
        "slotmesh/testing",
        "if not isinstance(value, types) or",
        "if False and",
        "tests/testing/test_backend_settings.py",
    ),
    mutant(
        "modules of the working directory stop the controller",
        "slotmesh/cli/local",
        'return () if is_checkout or has_policies else ("-P",)',
        "return ()",
        "tests/e2e/test_cli_run.py",
    ),
    mutant(
        "a client with a thread is made among greenlets",
        "slotmesh/client/sync",
        'if monkey is not None and monkey.is_module_patched("threading"):',
        "if False:",
        "tests/unit/client/test_gevent.py",
    ),
    mutant(
        "a thread's stream has the span of the thread that woke the client",
        "slotmesh/client/sync",
        "partial(copy_context().run, make, *args, **kwargs)",
        "partial(make, *args, **kwargs)",
        "tests/contract/replica/test_call_origins.py",
    ),
)

_WARNINGS: Final = (
    mutant(
        "a controller that is away is worth a line an attempt",
        "slotmesh/runtime",
        "if now < self._due_at:",
        "if False:",
        "tests/unit/runtime/test_backoff.py",
    ),
    mutant(
        "routers log each attempt to reach their controller",
        "router_service/shell",
        "if left_out is None:",
        "if False:",
        "tests/contract/controller/test_is_away.py",
    ),
)

CLIENTS: Final = (*_CLOSING, *_STOPPING, *_FILES_AND_PROCESSES, *_WARNINGS)
