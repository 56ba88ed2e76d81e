"""What runs, as far as the controller knows: replicas, routers, leases, and the transitions of that state."""
