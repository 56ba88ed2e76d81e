"""Versions of it."""
