"""A call's way: in, to its replica, back, and to its one outcome."""
