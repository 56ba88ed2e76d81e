"""Mutants of pods: what proves an end, and which pods nothing waits for."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

PODS_CORE: Final = "controller_service/core/pods"
LAUNCHER: Final = "tests/contract/controller/test_kubernetes_launcher.py"

PODS: Final = (
    mutant(
        "a replica whose pod is deleted before its start was reported is waited for",
        PODS_CORE,
        "return self.is_asked and self.stage is PodStage.WAITING",
        "return False",
        LAUNCHER,
    ),
    mutant(
        "each pod that waits is lost",
        PODS_CORE,
        "return self.is_asked and self.stage is PodStage.WAITING",
        "return self.stage is PodStage.WAITING",
        "tests/properties/test_pods.py",
    ),
    mutant(
        "the deletion of a pod proves its end, also on a node that is lost",
        PODS_CORE,
        "if not view.is_bound and (is_final or is_deleted):",
        "if is_final or is_deleted:",
        "tests/properties/test_pods.py",
    ),
    mutant(
        "the end of a pod that was lost is overlooked",
        PODS_CORE,
        "return self._finish(pod) if pod.stage is PodStage.ENDED else []",
        "return []",
        LAUNCHER,
    ),
    mutant(
        "a start that is deferred no more is shown as deferred",
        "controller_service/shell/loops",
        "self._state.deferred_starts.pop(name, None)",
        "pass",
        "tests/contract/controller/test_deferred_starts.py",
    ),
)
