"""Where calls go: the routing table, the state that follows from it, and which replica gets which calls."""
