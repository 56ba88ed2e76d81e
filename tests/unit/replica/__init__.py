"""The replica, a module at a time."""
