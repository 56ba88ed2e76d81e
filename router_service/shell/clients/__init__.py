"""Whom the router serves: streams, single calls, and what they are told."""
