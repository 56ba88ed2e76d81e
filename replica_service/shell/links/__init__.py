"""Whom the replica speaks to: routers, the controller, and callers who come without a router."""
