"""The architecture, where import-linter cannot see it."""
