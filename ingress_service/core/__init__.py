"""Decisions of the ingress: pure, synchronous."""
