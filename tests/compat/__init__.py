"""Versions N and N-1 in one mesh: docs/compatibility.md."""
