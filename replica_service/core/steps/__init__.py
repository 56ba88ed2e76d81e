"""Calls that have not started and never will here: taken back by routers, handed back by the replica."""
