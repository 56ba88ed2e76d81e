"""Calls that somebody looks at while they end."""
