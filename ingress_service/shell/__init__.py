"""Connections, tasks and streams of the ingress."""
