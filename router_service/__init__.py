"""The data plane: queues calls, picks replicas, keeps order."""
