"""Between messages and what a router's core works with."""
