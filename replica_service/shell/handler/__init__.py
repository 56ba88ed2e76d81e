"""The user's handler: how it is loaded, its hooks, how its failures are reported."""
