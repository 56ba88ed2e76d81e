"""Rollouts: how a backend's replicas are replaced by those with its new settings, and when that is taken back."""
