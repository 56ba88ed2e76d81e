"""`slotmesh.testing`, as users' tests use it, and the snippets of the documentation that are run with it."""
