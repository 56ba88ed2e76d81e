"""Proves what must hold of calls when things break, from what clients and handlers recorded."""
