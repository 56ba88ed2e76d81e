"""Carts by user, in a database: state that outlives the replicas that change it."""
