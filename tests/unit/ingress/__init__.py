"""Decisions of the ingress, without sockets."""
