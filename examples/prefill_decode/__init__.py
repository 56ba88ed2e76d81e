"""Prefill and decode on different replicas: what two-step routing is for."""
