"""The version, in one place."""

VERSION = "0.2.0"
"""Of the package, and of every process that reports its version."""
