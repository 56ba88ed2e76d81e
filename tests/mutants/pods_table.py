"""Mutants of pods: what proves an end, and which pods nothing waits for."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import mutant

PODS_CORE: Final = "controller_service/core/pods"
LAUNCHER: Final = "tests/contract/controller/test_kubernetes_launcher.py"

ORDERS: Final = "tests/contract/controller/test_kubernetes_orders.py"

PODS: Final = (
    mutant(
        "a pod that was created while pods were listed is lost",
        PODS_CORE,
        "if not self._is_newer(known, version):",
        "if True:",
        ORDERS,
    ),
    mutant(
        "a pod that has run has ended once its kubelet rejects it",
        PODS_CORE,
        "if pod.is_rejected and known is not None and known.stage is PodStage.RUNNING:",
        "if False:",
        "tests/unit/controller/pods/test_book.py",
    ),
    mutant(
        "a request is given up with the start that has made it",
        "controller_service/shell/launchers/kubernetes",
        "await asyncio.shield(request)",
        "await request",
        ORDERS,
    ),
    mutant(
        "a pod that has run is requested again under its name",
        "controller_service/shell/launchers/kubernetes",
        "if replica_id not in self._unanswered:\n            return",
        "if False:\n            return",
        ORDERS,
    ),
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
        "return self._finish(pod) if pod.stage is PodStage.ENDED and not pod.is_rejected else []",
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
    mutant(
        "lines of a pod's log come twice after its connection broke",
        PODS_CORE,
        "        return moment < self._newest",
        "        return False",
        "tests/unit/controller/pods/test_stamped_lines.py",
    ),
    mutant(
        "two lines of one time are one after a connection broke",
        PODS_CORE,
        "if moment == self._newest and self._known:",
        "if moment == self._newest:",
        "tests/unit/controller/pods/test_stamped_lines.py",
    ),
)
