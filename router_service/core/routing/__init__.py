"""Where calls go: the routing table, what it has come to, who gets which calls."""
