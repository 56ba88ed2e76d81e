"""Traffic, shares and what an endpoint leads to."""
