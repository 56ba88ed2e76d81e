"""What operators request: changes of the configuration, orders for single replicas, and their refusals."""
