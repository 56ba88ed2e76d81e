"""Pods of replicas: what their status proves, and what follows from a list and a watch of them."""
