"""Paths of the Open Inference Protocol."""

from __future__ import annotations

import pytest

from ingress_service.core.inference import InferenceOperation, InferencePath, inference_path, is_below

PATHS = {
    b"/v2": InferencePath(InferenceOperation.SERVER),
    b"/v2/health/live": InferencePath(InferenceOperation.LIVE),
    b"/v2/health/ready": InferencePath(InferenceOperation.READY),
    b"/v2/models/stats": InferencePath(InferenceOperation.ALL_STATISTICS),
    b"/v2/models/m": InferencePath(InferenceOperation.MODEL, "m"),
    b"/v2/models/m/ready": InferencePath(InferenceOperation.MODEL_READY, "m"),
    b"/v2/models/m/stats": InferencePath(InferenceOperation.STATISTICS, "m"),
    b"/v2/models/stats/stats": InferencePath(InferenceOperation.STATISTICS, "stats"),
    b"/v2/models/a%2Fb%20c/infer": InferencePath(InferenceOperation.INFER, "a/b c"),
    b"/v2/models/m/versions/v": InferencePath(InferenceOperation.MODEL, "m", "v"),
    b"/v2/models/m/versions/v/infer": InferencePath(InferenceOperation.INFER, "m", "v"),
    b"/v2/models/m/versions/v/config": InferencePath(InferenceOperation.CONFIG, "m", "v"),
    b"/v2/models/versions/versions/versions": InferencePath(InferenceOperation.MODEL, "versions", "versions"),
    b"/v2/repository/index": InferencePath(InferenceOperation.INDEX),
    b"/v2/repository/models/m/load": InferencePath(InferenceOperation.UNSUPPORTED),
    b"/v2/cudasharedmemory/status": InferencePath(InferenceOperation.UNSUPPORTED),
}


@pytest.mark.parametrize("path", PATHS, ids=bytes.decode)
def test_each_path_is_one_operation(path: bytes) -> None:
    assert is_below(path)
    assert inference_path(path) == PATHS[path]


@pytest.mark.parametrize(
    "path",
    [
        *(b"/", b"/v2/", b"/v20", b"/V2", b"v2", b"/v2/models", b"/v2/models/", b"/v2/models//infer", b"/v2/nothing"),
        *(b"/v2/models/m/", b"/v2/models/m/versions", b"/v2/models/m/versions/", b"/v2/models/m/versions/v/nothing"),
        *(b"/v2/models/m/infer/", b"/v2/models/%ff/infer", b"/v2/health", b"/v2/repository/index/x", b"/-/v2"),
    ],
)
def test_what_is_none(path: bytes) -> None:
    assert inference_path(path) is None


def test_labels_are_one_for_each_operation() -> None:
    labels = [each.label for each in InferenceOperation]
    assert len(set(labels)) == len(labels)
    assert all(each.label.startswith("/v2") for each in InferenceOperation)
