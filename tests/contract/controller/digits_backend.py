"""A backend of several replicas, as tests of the controller apply it."""

from __future__ import annotations

from slotmesh.calls.key_hash import PARTITIONS

DIGITS = """
backends:
  v1: {handler: "app:Digits", num_replicas: %d, max_ongoing: 7,
       user_config: {model: centroid, k: 3}, graceful_timeout: 2s}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""


def evenly(*replica_ids: str) -> dict[str, int]:
    return dict.fromkeys(replica_ids, PARTITIONS // len(replica_ids))
