"""What follows from events, by kind: each method takes an event and the time."""
