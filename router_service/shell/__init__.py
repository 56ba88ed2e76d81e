"""Where the router acts: streams, links, timers. It decides nothing; the core does."""
