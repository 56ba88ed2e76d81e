"""A store in etcd: `client.py` speaks its protocol, `layout.py` has keys and values, `etcd_state.py` writes and fences.

A controller leads while it holds the key `leader`, which is bound to a lease. Each write compares the revision that
created that key, and the revision that wrote the head, so that a late leader, and a late write, change nothing.
"""
