"""Settings by the names that other serving frameworks have for them, and ours."""

from __future__ import annotations

from typing import Final

FOREIGN: Final = {
    "applications": ("backends",),
    "deployments": ("backends",),
    "models": ("backends",),
    "services": ("backends",),
    "import_path": ("handler",),
    "replicas": ("num_replicas",),
    "workers": ("num_replicas",),
    "autoscaling": ("autoscale",),
    "autoscaling_config": ("autoscale",),
    "min_replicas": (
        "min",
        "autoscale: {min: …}",
    ),
    "max_replicas": (
        "max",
        "autoscale: {max: …}",
    ),
    "target_ongoing_requests": (
        "target_ongoing",
        "autoscale: {target_ongoing: …}",
    ),
    "max_ongoing_requests": ("max_ongoing",),
    "max_concurrent_queries": ("max_ongoing",),
    "concurrency": ("max_ongoing",),
    "max_queued_requests": ("max_queued_calls",),
    "max_queue_size": ("max_queued_calls",),
    "timeout": ("max_queue_time",),
    "graceful_shutdown_timeout_s": ("graceful_timeout",),
    "init_kwargs": ("user_config",),
    "args": ("user_config",),
    "weights": ("traffic",),
    "backend": ("traffic: {NAME: 1.0}",),
    "backends": ("traffic: {NAME: 1.0}",),
    "canary": ("traffic",),
    "mirror": ("shadows",),
}
"""Another's name -> ours; where maps of the document differ, that of each."""
